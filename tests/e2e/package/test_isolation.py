"""tests/run_pytest.sh: no test of this suite sees what the user has, or what other suites make."""

import os
import pathlib
import pwd
import tempfile


def test_home_cache_and_temporary_files_are_of_this_call_alone(tmp_path):
    own = pathlib.Path(os.environ["HOME"]).parent
    for folder in (os.environ["XDG_CACHE_HOME"], tempfile.gettempdir(), str(tmp_path), os.path.expanduser("~")):
        assert pathlib.Path(folder).is_relative_to(own) and pathlib.Path(folder).is_dir(), folder
    user = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user not in (own, *own.parents) and own.name.startswith("fb.")
