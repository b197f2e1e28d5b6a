"""Abseil of the system under the labels of upstream Abseil: `@com_google_absl//absl/status:statusor`.

A component that the installed version does not have (Debian 12 has no `log`) has no target: what depends on it fails
to build and says which. To build against upstream Abseil instead, replace this rule; no label elsewhere changes.
"""

load("//third_party:pkg_config.bzl", "cc_library_text", "query_pkg_config")

# Package -> targets. The pkg-config module is absl_<target>.
_COMPONENTS = {
    "algorithm": ["container"],
    "base": ["base", "config", "core_headers", "endian"],
    "cleanup": ["cleanup"],
    "container": ["btree", "fixed_array", "flat_hash_map", "flat_hash_set", "inlined_vector"],
    "debugging": ["failure_signal_handler", "stacktrace", "symbolize"],
    "flags": ["flag", "parse", "usage"],
    "functional": ["any_invocable", "bind_front", "function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "meta": ["type_traits"],
    "numeric": ["bits", "int128"],
    "random": ["random"],
    "status": ["status", "statusor"],
    "strings": ["cord", "str_format", "strings"],
    "time": ["time"],
    "types": ["optional", "span", "variant"],
}

# Modules that are named otherwise than absl_<target>.
_MODULES = {
    "algorithm/container": "absl_algorithm_container",
    "flags/flag": "absl_flags",
    "flags/parse": "absl_flags_parse",
    "flags/usage": "absl_flags_usage",
    "random/random": "absl_random_random",
}

def _absl_impl(ctx):
    if not query_pkg_config(ctx, ["absl_base"]):
        fail("pkg-config does not know absl_base: apt-get install libabsl-dev (tools/setup does)")
    for package, targets in _COMPONENTS.items():
        text = "# Written by //third_party/absl:absl.bzl.\n\n"
        for target in targets:
            found = query_pkg_config(ctx, [_MODULES.get(package + "/" + target, "absl_" + target)])
            if found:
                text += cc_library_text(name = target, defines = found.defines, linkopts = found.linkopts)
        ctx.file("absl/%s/BUILD.bazel" % package, text)
    ctx.file("BUILD.bazel", "")

absl = repository_rule(
    implementation = _absl_impl,
    configure = True,
    environ = ["PATH", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"],
    local = True,
)
