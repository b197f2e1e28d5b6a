"""The headers of Python, and of pybind11: which Python the extension module and the wheel are of.

`@python_headers` is the system's (pkg-config), or what is in $BYTEPS_PYTHON_INCLUDE: the folder that
`python3.X -c "import sysconfig; print(sysconfig.get_path('include'))"` prints. The interpreter itself is not needed.

    bazel build --repo_env=BYTEPS_PYTHON_INCLUDE=/usr/include/python3.13 //frameworks/python:wheel

`@pybind11` is the system's, or the one in $BYTEPS_PYBIND11_INCLUDE: the folder that `python3 -m pybind11 --includes`
prints. Python 3.12 needs 2.11 or newer, Python 3.13 needs 2.13.
"""

load("//third_party:pkg_config.bzl", "cc_library_text", "query_pkg_config")

def _folder(ctx, variable, header, modules, package):
    """The folder that a variable or pkg-config names, and that has the header."""
    named = ctx.os.environ.get(variable)
    if named:
        if not ctx.path(named + "/" + header).exists:
            fail("{} is {}, where there is no {}".format(variable, named, header))
        return named
    found = query_pkg_config(ctx, modules)
    folders = (list(found.includes) if found else []) + (["/usr/include"] if found else [])
    for folder in folders:
        if ctx.path(folder + "/" + header).exists:
            return folder
    fail("{} is nowhere: apt-get install {} (tools/setup does), or name its folder in {}".format(header, package, variable))

def _number(ctx, folder, header, name):
    """The value of a macro that is a number."""
    for line in ctx.read(folder + "/" + header).split("\n"):
        words = [word for word in line.replace("\t", " ").split(" ") if word]
        if words[:2] == ["#define", name] and len(words) > 2:
            return int(words[2])
    fail("{}/{} does not say {}".format(folder, header, name))

def _python_version(ctx):
    """The folder of Python's headers, and its version as (3, 11)."""
    folder = _folder(ctx, "BYTEPS_PYTHON_INCLUDE", "patchlevel.h", ["python3"], "python3-dev")
    return folder, tuple([_number(ctx, folder, "patchlevel.h", "PY_%s_VERSION" % part) for part in ("MAJOR", "MINOR")])

def _python_headers_impl(ctx):
    folder, version = _python_version(ctx)
    if version < (3, 9):
        fail("{} is of Python {}.{}; BytePS needs 3.9 or newer".format(folder, version[0], version[1]))
    ctx.symlink(folder, "include")
    includes = ["include"]

    # Debian's pyconfig.h includes one below the folder of the processor, beside that of Python.
    path = ctx.path(folder)
    for sibling in path.dirname.readdir():
        if sibling.basename.endswith("-linux-gnu") and sibling.get_child(path.basename).exists:
            ctx.symlink(sibling.get_child(path.basename), "multiarch/%s/%s" % (sibling.basename, path.basename))
            includes.append("multiarch")
            break
    globs = ["%s/**/*.h" % include for include in includes]

    # The tags of what is compiled with these headers, as PEP 425 has them; without the lock it is another ABI.
    name = "cp%d%d" % version
    configured = [path.get_child("pyconfig.h")]
    if len(includes) > 1:
        configured.append(ctx.path("multiarch/%s/%s/pyconfig.h" % (sibling.basename, path.basename)))
    free = [file for file in configured if file.exists and "#define Py_GIL_DISABLED 1" in ctx.read(file)]
    ctx.file("tag", "%s-%s%s\n" % (name, name, "t" if free else ""))
    ctx.file("BUILD.bazel", 'exports_files(["tag"], ["//visibility:public"])\n\n' + cc_library_text(
        name = "python_headers",
        includes = includes,
        hdrs = "glob(%r)" % globs,
    ))

def _pybind11_impl(ctx):
    _, python = _python_version(ctx)
    folder = _folder(ctx, "BYTEPS_PYBIND11_INCLUDE", "pybind11/pybind11.h", ["pybind11"], "pybind11-dev")
    version = tuple([
        _number(ctx, folder, "pybind11/detail/common.h", "PYBIND11_VERSION_" + part)
        for part in ("MAJOR", "MINOR")
    ])
    needed = (2, 13) if python >= (3, 13) else (2, 11) if python >= (3, 12) else (2, 10)
    if version < needed:
        fail("pybind11 {}.{} in {} is too old for Python {}.{}: {}.{} is needed; name the folder that `python3 -m pybind11 --includes` prints in BYTEPS_PYBIND11_INCLUDE (pip install pybind11)".format(
            *(version + (folder,) + python + needed)
        ))
    ctx.symlink(folder + "/pybind11", "include/pybind11")
    ctx.file("BUILD.bazel", cc_library_text(
        name = "pybind11",
        includes = ["include"],
        hdrs = 'glob(["include/**/*.h"])',
        deps = ["@python_headers"],
    ))

_ENVIRONMENT = ["BYTEPS_PYBIND11_INCLUDE", "BYTEPS_PYTHON_INCLUDE", "PATH", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"]

python_headers = repository_rule(implementation = _python_headers_impl, configure = True, environ = _ENVIRONMENT, local = True)
pybind11 = repository_rule(implementation = _pybind11_impl, configure = True, environ = _ENVIRONMENT, local = True)
