"""A repository rule that wraps a system package found by pkg-config.

    pkg_config(name = "libfabric", apt = "libfabric-dev", targets = {"libfabric": ["libfabric"]})

makes `@libfabric` (and `@libfabric//:libfabric`): a cc_library with the flags pkg-config gives for those modules.
Include directories outside the compiler's own are linked into the repository. A module that is missing stops the
build with the name of the package to install.
"""

# Flags that say where the compiler looks anyway.
_SYSTEM_INCLUDES = ["/usr/include", "/usr/local/include"]

def _unique(items):
    return {item: None for item in items}.keys()

def query_pkg_config(ctx, modules):
    """Asks pkg-config about modules.

    Args:
      ctx: the repository context
      modules: names of pkg-config modules
    Returns:
      struct(defines, includes, linkopts), or None when one of the modules is missing.
    """
    tool = ctx.which("pkg-config")
    if not tool:
        fail("pkg-config is missing: apt-get install pkg-config (tools/setup does)")
    result = ctx.execute([tool, "--cflags", "--libs"] + modules)
    if result.return_code != 0:
        return None
    defines, includes, linkopts = [], [], []
    for flag in [f for f in result.stdout.replace("\n", " ").split(" ") if f]:
        if flag.startswith("-D"):
            defines.append(flag[2:])
        elif flag.startswith("-I"):
            if flag[2:] not in _SYSTEM_INCLUDES:
                includes.append(flag[2:])
        elif flag.startswith("-l") or flag.startswith("-L") or flag.startswith("-Wl,"):
            linkopts.append(flag)
        elif flag == "-pthread":
            linkopts.append("-lpthread")
    return struct(
        defines = _unique(defines),
        includes = _unique(includes),
        # Not made unique: -Wl,--push-state and its like come in pairs, and libraries may be named twice for a reason.
        linkopts = linkopts,
    )

def cc_library_text(name, defines = [], includes = [], linkopts = [], deps = [], hdrs = None):
    """The text of one cc_library of a wrapped package."""
    return """cc_library(
    name = "{name}",
    hdrs = {hdrs},
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
    deps = {deps},
    visibility = ["//visibility:public"],
)

""".format(
        name = name,
        hdrs = hdrs or "[]",
        defines = repr(defines),
        includes = repr(includes),
        linkopts = repr(linkopts),
        deps = repr(deps),
    )

def _pkg_config_impl(ctx):
    text = "# Written by //third_party:pkg_config.bzl.\n\n"
    links = {}
    for target, modules in ctx.attr.targets.items():
        found = query_pkg_config(ctx, modules)
        if not found:
            fail("pkg-config does not know {}: apt-get install {} (tools/setup does)".format(
                " ".join(modules),
                ctx.attr.apt,
            ))
        includes = []
        for directory in found.includes:
            if directory not in links:
                links[directory] = "include_%d" % len(links)
                ctx.symlink(directory, links[directory])
            includes.append(links[directory])
        text += cc_library_text(
            name = target,
            defines = found.defines,
            includes = includes,
            linkopts = [] if ctx.attr.headers_only else found.linkopts,
            hdrs = "glob({}, allow_empty = True)".format(repr([i + "/**" for i in includes])) if includes else None,
        )
    ctx.file("BUILD.bazel", text)

pkg_config = repository_rule(
    implementation = _pkg_config_impl,
    attrs = {
        "apt": attr.string(mandatory = True, doc = "Debian packages that provide the modules"),
        "headers_only": attr.bool(doc = "whether to leave the libraries alone: what needs them does not link"),
        "targets": attr.string_list_dict(mandatory = True, doc = "target name to pkg-config modules"),
    },
    configure = True,
    environ = ["PATH", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"],
    local = True,
)
