"""Entry point of ``sparkrt``.

Every module of this package that has ``add_arguments(parser)`` and ``run(args) -> int`` is a
sub-command of its name: its docstring is the help text. A module whose name starts with an
underscore is none. Command modules import what is heavy (torch, ROS) inside ``run``, so that
``sparkrt --help`` is immediate.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

import sparkrt_ros
from sparkrt_ros import cli
from sparkrt_ros.runtime.errors import SparkRTError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
# Faults of the machine, not of the program: full, over quota, read-only, not permitted.
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit code.

    0: done. 2: wrong arguments, or any deliberate error, told in one line on stderr.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help(sys.stderr)
        return EXIT_ERROR
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except SparkRTError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith('sparkrt_ros'):
            raise
        return _fail(f'the Python module {error.name} is not installed, and this command needs it')
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (a pager, head) has gone: nothing more may be written at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        where = error.filename or 'a file'
        return _fail(f'{where} cannot be written: {error.strerror}')
    return code


def _fail(message: str) -> int:
    print(f'sparkrt: error: {message}', file=sys.stderr)
    return EXIT_ERROR


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every sub-command."""
    parser = argparse.ArgumentParser(prog='sparkrt', description=sparkrt_ros.__doc__)
    parser.add_argument(
        '--version', action='version', version=f'sparkrt {sparkrt_ros.__version__}'
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title='commands', metavar='COMMAND')
    for name, module in command_modules().items():
        text = (module.__doc__ or name).strip()
        command = commands.add_parser(
            name, help=text.splitlines()[0], description=text.split('\n\n')[0]
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def command_modules() -> dict[str, ModuleType]:
    """Return the command modules of this package by name."""
    found = {}
    for info in pkgutil.iter_modules(cli.__path__):
        if info.name == 'main' or info.name.startswith('_'):
            continue
        found[info.name] = importlib.import_module(f'{cli.__name__}.{info.name}')
    return found


if __name__ == '__main__':
    sys.exit(main())
