"""The command line: argv -> a verb with its options; the only room that prints answers and decides exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

import hidet_build
from hidet_build.errors import (
    BuildError,
    EnvironmentFailure,
    ExitCode,
    Interrupted,
    UsageError,
    did_you_mean,
    error_list,
)
from hidet_build.limits import whole_memory
from hidet_build.process import Processes
from hidet_build.quick import Changes
from hidet_build.settings import (
    DISK_CACHE,
    PROGRAM,
    QUIET,
    REQUIRE_CACHED,
    default_jobs,
    disk_cache,
    output_base,
    require_cached,
    user_cache,
    worker_folders,
    worker_idle_timeout,
)

# Errors of the machine and not of ours, wherever they come from.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
# The verbs, and what each is for.
VERBS = {
    "build": "build targets; what a command line means that starts with a label",
    "query": "ask about the target graph: deps, rdeps, kind, filter, set operators",
    "clean": "delete what was built in this workspace",
    "cache": "export and import the store of results, or show what is in it",
    "run-jit": "run a program whose hidet compiles through our cache: run-jit -- python model.py",
    "shutdown": "end the worker that waits for the next build of this workspace",
    "info": "show folders, versions and tools",
    "version": "print the version",
    "help": "explain a verb, or a rule",
}
EXAMPLES = f"""\
patterns:
  //a/b:c      the target c of the package a/b         //a/b       the same as //a/b:b
  //a/...      all targets in a and below              //a:all     all targets of the package a
  :c           the target c of the package you are in  -//a/x/...  but not these

for example:
  {PROGRAM} //examples/quickstart:matmul
  {PROGRAM} //... -//examples/attention/...
  {PROGRAM} query "rdeps(//..., //kernels:tiles)"
"""


_CACHE_USES = f"""\
  {PROGRAM} cache export DIR              copy all results of the store to DIR
  {PROGRAM} cache export DIR PATTERN...   only what the build of these targets used; they must be up to date
  {PROGRAM} cache import DIR              copy what is sound in DIR into the store; exit 1 if something was not
  {PROGRAM} cache status                  where the store is, how much it holds

DIR can itself be used as --disk_cache. A build with --require_cached shows that nothing is missing.
"""
_RUN_JIT = f"""\
hidet compiles for the CPU of this machine, unless the program says hidet.option.cpu.arch('x86-64-v3'): only then does
a store that travels serve other models. {QUIET}=1 in the environment keeps us from telling what is compiled.
"""
_REFUSALS = 20  # of files that are refused, that many are named


def main(argv: Sequence[str], changes: Changes | None = None) -> int:
    """Run one command line; returns its exit code. `changes` is what is known to have changed since the last time."""
    for stream in (sys.stdout, sys.stderr):  # a name that a terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    processes = Processes()
    try:
        with _interruptible(processes):
            return _run(argv, processes, changes)
    except BuildError as error:
        _tell(error)
        return error.exit_code
    except BrokenPipeError:  # the reader of our answers had enough
        _drop_answers()
        return ExitCode.SUCCESS
    except KeyboardInterrupt:
        _say("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            _say(f"{error.strerror}: {error.filename or 'where the answer goes'}")
            _drop_answers()
            return ExitCode.ENVIRONMENT
        import traceback  # only here, and 5 ms

        traceback.print_exc()
        _say("this is a bug in hidet-build: please report it with the text above")
        return ExitCode.INTERNAL


def _drop_answers() -> None:
    """Let what is still to be written to stdout go nowhere, so that ending does not fail for it."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: BuildError) -> None:
    """Show an error, or each of several with a blank line between them."""
    for number, one in enumerate(error_list(error)):
        if number:
            print(file=sys.stderr)
        _say(one.render())


def _say(text: str) -> None:
    print(f"ERROR: {text}", file=sys.stderr)


@contextlib.contextmanager
def _interruptible(processes: Processes) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM, SIGHUP) ends what runs and lets us clean up; the second ends us at once."""

    def stop(_: int, __: object) -> None:
        if processes.stopped:
            processes.terminate_all(grace=0)
            os._exit(ExitCode.INTERRUPTED)
        processes.terminate_all()
        if not processes.watched:
            # Nothing is half done but what the next run puts right. An exception would get lost in somebody's
            # `finally` or callback, and one through `exec` makes Python die of the signal whatever we return.
            os.write(2, b"ERROR: interrupted\n")
            os._exit(ExitCode.INTERRUPTED)

    # What we were started deaf to (`nohup`, a background job of a script) we stay deaf to.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(argv: Sequence[str], processes: Processes, changes: Changes | None) -> int:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise EnvironmentFailure(f"{PROGRAM} runs on Linux x86-64; this is {os.uname().sysname} {os.uname().machine}")
    verb, rest = _verb(argv)
    if verb is None:
        print(_overview(), file=sys.stderr)
        return ExitCode.USAGE
    options = _parser(verb).parse_intermixed_args(_plain(rest))
    options.words = [word.replace(_ESCAPE, "-", 1) for word in getattr(options, "words", [])]
    options.changes = changes
    run = _RUN[verb]
    return run(options, argv, processes)


# ---- from argv to a verb and its options

_ESCAPE = "\0"  # stands for the minus of a negative pattern, which argparse would take for a flag


def _verb(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The verb and what is left; `build` where the first word is a pattern."""
    rest = list(argv)
    value_follows = False
    for index, word in enumerate(rest):
        if word in ("--help", "-h") and index == 0:
            return "help", rest[1:]
        if word == "--version" and index == 0:
            return "version", []
        if value_follows or (word.startswith("-") and not word.startswith(("-/", "-:"))):
            value_follows = not value_follows and _plain([word])[-1:] in _value_flags()
            continue
        if word in VERBS:
            return word, rest[:index] + rest[index + 1 :]
        if re.search(r"[/:.]", word):
            return "build", rest
        raise UsageError(
            f"unknown verb {word!r}",
            hint=did_you_mean(word, VERBS) or f"a target is written with a colon or slashes: {PROGRAM} :{word}",
        )
    return ("build", rest) if rest else (None, [])


def _value_flags() -> list[list[str]]:
    """The flags whose value may be the next word."""
    actions = [action for verb in ("build", "query") for action in _parser(verb)._actions]
    return [[name] for action in actions if action.nargs is None for name in action.option_strings]


def _plain(words: Sequence[str]) -> list[str]:
    """The words as argparse takes them: flags with underscores, negative patterns hidden from it."""
    done: list[str] = []
    for index, word in enumerate(words):
        if word == "--":
            return [*done, *(word.replace("-", _ESCAPE, 1) if word[:1] == "-" else word for word in words[index + 1 :])]
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + equals + value
        elif word.startswith(("-/", "-:")):
            word = _ESCAPE + word[1:]
        done.append(word)
    return done


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        flag = re.search(r"(?<!\S)--?\w+", message)
        hint = f"{self.prog} --help lists the flags"
        if message.startswith("unrecognized arguments") and flag:
            known = [name for action in self._actions for name in action.option_strings]
            raise UsageError(
                f"unknown flag {flag.group()} for {self.prog}", hint=did_you_mean(flag.group(), known) or hint
            )
        raise UsageError(message, hint=hint)


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse's own, but for the width: it imports shutil to know it, at the first flag it is told of."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):  # it is no terminal, or closed
        return 80


def _parser(verb: str) -> argparse.ArgumentParser:
    epilog = {"build": EXAMPLES, "cache": _CACHE_USES, "run-jit": _RUN_JIT}.get(verb)
    parser = _Parser(
        prog=f"{PROGRAM} {verb}",
        description=VERBS[verb],
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=_Help,
    )
    if verb in ("build", "query", "clean", "info", "cache"):
        parser.add_argument("--output_base", metavar="DIR", help="where outputs and state go (default: hidet-out)")
        parser.add_argument(
            "--symlink_prefix",
            metavar="TEXT",
            default="hidet-",
            help="name of the link to the outputs, before `bin`; / for none",
        )
        parser.add_argument(
            "--disk_cache",
            metavar="DIR",
            help=f"the store of results; empty: one in the output base (also: {DISK_CACHE}=DIR)",
        )
        parser.add_argument("--color", choices=["yes", "no", "auto"], default="auto", help="colours on stderr")
    if verb == "build":
        _build_flags(parser)
        parser.add_argument("words", nargs="*", metavar="PATTERN", help="targets to build")
    elif verb == "query":
        parser.add_argument(
            "--output",
            choices=["label", "label_kind", "location"],
            default="label",
            help="what to print of each result",
        )
        _switch(parser, "keep_going", "-k", help="go on without the packages that cannot be loaded (exit 3)")
        parser.add_argument(
            "words", nargs="+", metavar="EXPRESSION", help='like "deps(//a:b)" or "rdeps(//..., a/b.py)"'
        )
    elif verb == "info":
        parser.add_argument("words", nargs="*", metavar="KEY", help="print the value of this key alone")
    elif verb == "cache":
        _platforms(parser)
        parser.add_argument("words", nargs="*", metavar="USE", help="one of those below")
    elif verb == "run-jit":
        _require_cached(parser)
        parser.add_argument("--disk_cache", metavar="DIR", help=f"the store of results (also: {DISK_CACHE}=DIR)")
        parser.add_argument("words", nargs="+", metavar="PROGRAM", help="the program and its arguments, after --")
    elif verb == "help":
        parser.add_argument("words", nargs="*", metavar="VERB")
    return parser


def _build_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", "-j", metavar="N", type=_jobs, default=0, help="actions to run at once (default: the cores)"
    )
    parser.add_argument(
        "--local_resources",
        metavar="memory=SIZE",
        type=_memory,
        default=0,
        help="what running actions may take together, judged by what each took before: "
        "memory=4096 (MiB), memory=4G, memory=HOST_RAM*.5 (default: what is free)",
    )
    _switch(parser, "keep_going", "-k", help="go on with what does not depend on a failed action")
    _switch(parser, "subcommands", "-s", help="print each command line as it starts, ready to paste")
    _switch(parser, "verbose_failures", help="show everything a failed command said")
    _switch(parser, "explain", help="say why each action runs: which input, flag or tool changed, from what to what")
    _switch(parser, "check_up_to_date", help="run nothing; exit 1 and say why if something would run")
    _switch(parser, "build", default=True, help="load and analyze, run nothing")
    _switch(parser, "cache", default=True, help="run every action, whatever caches and earlier builds hold")
    _switch(parser, "block_for_lock", default=True, help="exit 9 where another build holds an action")
    parser.add_argument(
        "--lock_timeout", metavar="SECONDS", type=_seconds, help="how long to wait for another build's action"
    )
    parser.add_argument(
        "--worker_idle_timeout",
        metavar="SECONDS",
        type=_seconds,
        help="how long the worker that has imported hidet waits for the next build (default: 600; in CI 0: not at all)",
    )
    _require_cached(parser)
    _platforms(parser)
    parser.add_argument("--curses", choices=["yes", "no", "auto"], default="auto", help="live progress")


def _require_cached(parser: argparse.ArgumentParser) -> None:
    _switch(
        parser, "require_cached", help=f"fail where something would run that no cache has (also: {REQUIRE_CACHED}=1)"
    )
    parser.set_defaults(require_cached=None)  # then the variable decides


def _platforms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platforms", metavar="TARGET", default="", help='what to build for, like cpu or "cpu --arch=x86-64-v4"'
    )


def _switch(parser: argparse.ArgumentParser, name: str, *short: str, default: bool = False, help: str) -> None:
    """A flag that is `--name` and `--noname`; help shows the one that changes something."""
    yes, no = (argparse.SUPPRESS, help) if default else (help, argparse.SUPPRESS)
    parser.add_argument(f"--{name}", *short, action="store_true", default=default, help=yes)
    parser.add_argument(f"--no{name}", dest=name, action="store_false", help=no)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, not {text!r}")
    return seconds


def _jobs(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive number or auto, not {text!r}")
    return int(text)


def _memory(text: str) -> int:
    """Bytes of `memory=SIZE`: MiB as in Bazel, a number with a unit, or a part of what the machine has."""
    name, _, size = text.partition("=")
    found = re.fullmatch(r"(?:(HOST_RAM)(?:\*([\d.]+))?|([\d.]+)([KMGT]?)(?:i?B)?)", size, re.IGNORECASE)
    if name != "memory" or not found:
        raise argparse.ArgumentTypeError(f"expected memory=4096 (MiB), memory=4G or memory=HOST_RAM*.5, not {text!r}")
    whole, share, number, unit = found.groups()
    try:
        if whole:
            return max(1, int(whole_memory() * float(share or 1)))
        return max(1, int(float(number) * (1 << 10 * " KMGT".index(unit.upper() or "M"))))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{share or number!r} is no number") from None


# ---- verbs


def _build(options: argparse.Namespace, argv: Sequence[str], processes: Processes) -> int:
    # What runs actions is imported by the verbs that run some: a query, or help, is answered in half the time.
    from hidet_build.progress import choose_reporter
    from hidet_build.request import Options, Request
    from hidet_build.restoration import restore

    root, package = _workspace()
    if not options.words:
        raise UsageError(
            "which targets?",
            hint=f"`{PROGRAM} //...` builds everything here; `{PROGRAM} query //...` lists what there is",
        )
    reporter = choose_reporter(sys.stderr, os.environ, options.color, options.curses)
    request = Request(
        root=root,
        package=package,
        patterns=tuple(options.words),
        output_base=output_base(options.output_base, os.environ, root),
        disk_cache=disk_cache(options.disk_cache, os.environ),
        user_cache=user_cache(os.environ),
        platform=options.platforms,
        symlink_prefix=options.symlink_prefix,
        lock_timeout=options.lock_timeout,
        block_for_lock=options.block_for_lock,
        nobuild=not options.build,
        worker_idle_timeout=worker_idle_timeout(options.worker_idle_timeout, os.environ),
        worker_folders=worker_folders(os.environ),
        arguments=tuple(argv),
        changes=options.changes,
    )
    running = Options(
        jobs=options.jobs or default_jobs(os.environ),
        keep_going=options.keep_going,
        explain=options.explain,
        subcommands=options.subcommands,
        verbose_failures=options.verbose_failures,
        check_up_to_date=options.check_up_to_date,
        nocache=not options.cache,
        require_cached=require_cached(options.require_cached, os.environ),
        memory=options.local_resources,
    )
    if running.nocache and running.require_cached:
        raise UsageError(
            "--nocache runs every action, --require_cached none: both cannot be",
            hint=f"leave one out; {REQUIRE_CACHED} in the environment counts as --require_cached",
        )
    try:
        code: int = ExitCode.SUCCESS
        summary = restore(request, running, reporter)
        if summary is None:
            from hidet_build.build import build  # what runs actions, only when there may be some to run

            summary, code = build(request, running, os.environ, processes, reporter)
        reporter.build_finished(summary)
    finally:
        reporter.close()
    if processes.stopped and not summary.interrupted:  # it came too late to stop anything
        raise Interrupted("interrupted")
    return code


def _query(options: argparse.Namespace, _: Sequence[str], __: Processes) -> int:
    from hidet_build.inquiry import Question, inquire

    root, package = _workspace()
    base = output_base(options.output_base, os.environ, root)
    try:
        question = Question(root, package, " ".join(options.words), options.output, base, options.symlink_prefix)
        text, errors = inquire(question, options.keep_going)
    except UsageError:
        raise
    except BuildError as error:
        _tell(error)
        return ExitCode.QUERY_FAILED
    sys.stdout.write(text)
    sys.stdout.flush()
    for one in errors:
        _say(one.render())
    return ExitCode.TESTS_FAILED if errors else ExitCode.SUCCESS  # 3: for a query, a partial answer


def _clean(options: argparse.Namespace, _: Sequence[str], __: Processes) -> int:
    from hidet_build.build import MARKERS
    from hidet_build.clean import clean
    from hidet_build.execution import link_path

    root = _workspace()[0]
    clean(output_base(options.output_base, os.environ, root), link_path(root, options.symlink_prefix), MARKERS)
    return ExitCode.SUCCESS


def _cache(options: argparse.Namespace, _: Sequence[str], processes: Processes) -> int:
    from hidet_build import storage

    use, folder, patterns = _cache_words(options.words)
    store = disk_cache(options.disk_cache, os.environ)
    if not store:
        raise UsageError(
            "the store is switched off: --disk_cache or HIDET_BUILD_DISK_CACHE is empty",
            hint="name one: --disk_cache=DIR; builds without a store keep results in hidet-out/.state/cache",
        )
    if use == "status":
        print(storage.describe(store))
        return ExitCode.SUCCESS
    if use == "import":
        moved = storage.import_cache(folder, store)
        _tell_refused("ERROR", moved.refused)
        _inform(f"imported {moved.text()} from {folder} into {store}")
        if moved.refused:
            count = f"{len(moved.refused)} file{'s' if len(moved.refused) > 1 else ''}"
            _say(f"{count} of {folder} refused; everything else is in the store")
        return ExitCode.BUILD_FAILED if moved.refused else ExitCode.SUCCESS
    keys, uncached = _keys_to_export(options, store, patterns, processes) if patterns else (None, [])
    moved = storage.export_cache(store, folder, keys)
    # Of a whole store some entry may well be broken; of what a build rests on none may.
    _tell_refused("WARNING" if keys is None else "ERROR", moved.refused)
    for label in uncached:
        _inform(f"{label} is tagged no-cache: it is in no store, and --require_cached will refuse it", "WARNING")
    _inform(f"exported {moved.text()} from {store} to {folder}")
    return ExitCode.BUILD_FAILED if moved.refused and keys is not None else ExitCode.SUCCESS


def _cache_words(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """What to do, the folder, and for an export the patterns of targets."""
    hint = f"`{PROGRAM} help cache` shows the uses"
    if not words:
        raise UsageError("export, import or status?", hint=hint)
    use, *rest = words
    most = {"export": len(rest), "import": 1, "status": 0}
    if use not in most:
        raise UsageError(f"unknown use of the cache: {use!r}", hint=did_you_mean(use, most) or hint)
    if use != "status" and not rest:
        raise UsageError(f"cache {use}: which folder?", hint=hint)
    if len(rest) > most[use]:
        raise UsageError(f"cache {use}: {rest[most[use]]!r} is one word too many", hint=hint)
    return use, os.path.abspath(os.path.expanduser(rest[0])) if rest else "", rest[1:]


def _keys_to_export(
    options: argparse.Namespace, store: str, patterns: Sequence[str], processes: Processes
) -> tuple[list[str], list[str]]:
    from hidet_build.request import Request
    from hidet_build.storage import used_keys

    root, package = _workspace()
    request = Request(
        root=root,
        package=package,
        patterns=tuple(patterns),
        output_base=output_base(options.output_base, os.environ, root),
        disk_cache=store,
        user_cache=user_cache(os.environ),
        platform=options.platforms,
        symlink_prefix=options.symlink_prefix,
    )
    return used_keys(request, os.environ, processes)


def _tell_refused(severity: str, refused: Sequence[tuple[str, str]]) -> None:
    for path, reason in refused[:_REFUSALS]:
        _inform(f"left out {path}: {reason}", severity)
    if len(refused) > _REFUSALS:
        _inform(f"left out {len(refused) - _REFUSALS} more files", severity)


def _inform(text: str, severity: str = "INFO") -> None:
    print(f"{severity}: {text}", file=sys.stderr)


def _shutdown(_: argparse.Namespace, __: Sequence[str], ___: Processes) -> int:
    from hidet_build.worker.lasting import shut_down

    ended, ending = shut_down(worker_folders(os.environ), _workspace()[0])
    if ending:
        _inform(f"{_workers(ending)} will end with the build that uses it")
    if ended or not ending:
        _inform(f"{_workers(ended)} ended" if ended else "no worker is waiting")
    return ExitCode.SUCCESS


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def _info(options: argparse.Namespace, _: Sequence[str], processes: Processes) -> int:
    from hidet_build.build import describe_tool
    from hidet_build.execution import link_path

    root, package = _workspace()
    base = output_base(options.output_base, os.environ, root)
    values: dict[str, Callable[[], str]] = {
        "workspace": lambda: root,
        "package": lambda: f"//{package}",
        "output_base": lambda: base,
        "bin": lambda: link_path(root, options.symlink_prefix) or "none",
        "disk_cache": lambda: disk_cache(options.disk_cache, os.environ) or os.path.join(base, ".state", "cache"),
        "user_cache": lambda: user_cache(os.environ),
        "version": lambda: hidet_build.__version__,
        "python": lambda: sys.executable,
    }
    for name in ("cxx", "nvcc", "binutils", "hidet"):
        values[name] = partial(describe_tool, name, root, base, user_cache(os.environ), os.environ, processes)
    for word in options.words:
        if word not in values:
            raise UsageError(f"unknown key {word!r}", hint=did_you_mean(word, values) or "keys: " + ", ".join(values))
        print(values[word]())
    if not options.words:
        for name, value in values.items():
            print(f"{name}: {value()}")
    return ExitCode.SUCCESS


def _run_jit(options: argparse.Namespace, _: Sequence[str], __: Processes) -> int:
    """Become the program; its exit code is ours."""
    _refuse_isolated(options.words)
    hook = os.path.join(os.path.dirname(os.path.abspath(hidet_build.__file__)), "hook")
    folders = [hook, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": ":".join(folders)}
    if options.require_cached is not None:
        environment[REQUIRE_CACHED] = str(int(options.require_cached))
    if options.disk_cache is not None:
        environment[DISK_CACHE] = disk_cache(options.disk_cache, os.environ)
    try:
        os.execvpe(options.words[0], options.words, environment)
    except OSError as error:
        raise UsageError(f"cannot run {options.words[0]!r}: {error.strerror}") from None


def _refuse_isolated(words: Sequence[str]) -> None:
    """Refuse a Python that is told to ignore how we reach it: it would compile without us, and nobody would know."""
    if not os.path.basename(words[0]).startswith("python"):
        return
    for word in words[1:]:
        if not word.startswith("-") or word in ("-c", "-m", "-"):
            return
        if not word.startswith("--") and set(word[1:]) & set("IES"):
            raise UsageError(f"{words[0]} {word} ignores PYTHONPATH, through which run-jit reaches the program")


def _version(_: argparse.Namespace, __: Sequence[str], ___: Processes) -> int:
    print(f"{PROGRAM} {hidet_build.__version__}")
    return ExitCode.SUCCESS


def _help(options: argparse.Namespace, _: Sequence[str], __: Processes) -> int:
    if not options.words:
        print(_overview())
        return ExitCode.SUCCESS
    topic = options.words[0]
    if topic in VERBS:
        _parser(topic).print_help()
        return ExitCode.SUCCESS
    from hidet_build import reference
    from hidet_build.ruleset import built_in_rules

    rules = built_in_rules()
    if topic == "rules":
        print(f"{reference.summarize(rules)}\n\n`{PROGRAM} help RULE` lists the attributes of one.")
    elif topic in rules:
        print(reference.describe(rules[topic]), end="")
    else:
        hint = (
            did_you_mean(topic, [*VERBS, *rules])
            or f"`{PROGRAM} help` lists the verbs, `{PROGRAM} help rules` the rules"
        )
        raise UsageError(f"{topic!r} is neither a verb nor a rule", hint=hint)
    return ExitCode.SUCCESS


_RUN = {
    "build": _build,
    "query": _query,
    "clean": _clean,
    "cache": _cache,
    "shutdown": _shutdown,
    "info": _info,
    "version": _version,
    "help": _help,
    "run-jit": _run_jit,
}


def _overview() -> str:
    verbs = "\n".join(f"  {name:<9} {purpose}" for name, purpose in VERBS.items())
    return (
        f"{PROGRAM} builds hidet kernels declared in BUILD.yaml files, and only what an edit made stale.\n\n"
        f"usage: {PROGRAM} [VERB] [FLAGS] PATTERNS...\n\nverbs:\n{verbs}\n\n{EXAMPLES}\n"
        f"`{PROGRAM} help build` lists the flags, `{PROGRAM} help rules` what can stand in a BUILD.yaml."
    )


# ---- folders


def _workspace() -> tuple[str, str]:
    """The root of the workspace we are in, and our folder from there."""
    from hidet_build.workspace import find_root

    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise UsageError("the folder you are in was deleted", hint="go to your project") from None
    root = find_root(here)
    if root is None:
        raise UsageError(
            f"no workspace here: no BUILD.yaml with a `workspace:` section in {here} or above",
            hint="go to your project, or start one: a BUILD.yaml with `workspace: {name: my_kernels}`",
        )
    return root, os.path.relpath(here, root) if here != root else ""
