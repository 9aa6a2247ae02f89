"""The packages of one build, each loaded once. Knows where packages come from and what they were made of."""

from __future__ import annotations

from hidet_build.errors import BuildError, LoadError, Location
from hidet_build.package import Package, Settings, load_package, load_settings
from hidet_build.ruleset import RuleLoader
from hidet_build.workspace import BUILD_FILE, Workspace


class Loader:
    """Loads packages when they are first asked for."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._rules = RuleLoader(workspace)
        self._packages: dict[str, Package] = {}
        self._broken: dict[str, BuildError] = {}
        self._files: set[str] = {BUILD_FILE}

    def settings(self) -> Settings:
        """The `workspace:` section."""
        return load_settings(self._workspace)

    def package(self, name: str, origin: Location | None) -> Package:
        """The package of this name; raises what is wrong with it each time it is asked for.

        `origin` is where it was named, for the error that there is no such package.
        """
        if name in self._packages:
            return self._packages[name]
        if name in self._broken:
            raise self._broken[name]
        try:
            self._packages[name] = load_package(self._workspace, name, self._rules.load, origin)
        except LoadError as error:
            if not _is_missing(error, origin):
                self._broken[name] = error
            raise
        except BuildError as error:
            self._broken[name] = error
            raise
        self._files.update(self._packages[name].files)
        return self._packages[name]

    def forget(self) -> None:
        """Let the packages go, when a plan was made of them; which files they came from stays known."""
        self._packages.clear()

    def files(self) -> tuple[str, ...]:
        """Every file read (or looked for) so far, rule modules included, from the workspace root."""
        return tuple(sorted({*self._files, *self._rules.files}))


def _is_missing(error: LoadError, origin: Location | None) -> bool:
    """Whether the error is about the place that asked, and so differs from one asking place to the next."""
    return origin is not None and error.location == origin
