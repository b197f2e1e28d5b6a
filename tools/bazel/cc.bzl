"""How C and C++ are built here. The only place that mentions native.cc_*.

    load("//tools/bazel:cc.bzl", "bps_cc_library", "bps_cc_test")

    bps_cc_library(name = "partition", srcs = ["partition.cc"], hdrs = ["partition.h"], deps = [...])
    bps_cc_test(name = "partition_test", srcs = ["partition_test.cc"], deps = ["//core/worker/tensor:partition"])

From another workspace, whose repository of this tree is called byteps (docs/bazel.md):

    load("@byteps//tools/bazel:cc.bzl", "bps_cc_plugin")

Every target gets strict warnings, hidden visibility, and no contraction of floating-point expressions: results must be
the same bits everywhere. Libraries are linked statically into tests, binaries and shared objects; only third-party
libraries stay dynamic.
"""

_COPTS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wundef",
    "-Wcast-align",
    "-Wformat=2",
    "-Wwrite-strings",
    # Structs of the ABI are initialised by macros that set the first field alone.
    "-Wno-missing-field-initializers",
    "-fvisibility=hidden",
    "-ffp-contract=off",
]

_C_COPTS = _COPTS + ["-std=c11", "-Wstrict-prototypes", "-Wmissing-prototypes"]

_CXX_COPTS = _COPTS + [
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wextra-semi",
    "-fvisibility-inlines-hidden",
    "-fno-gnu-unique",
]

# For shared objects: nothing linked that is not used. What is exported is said by the version script alone, which ends
# with `local: *`; --exclude-libs would, with GNU ld, also hide what the script names, since it comes from archives.
_SHARED_LINKOPTS = ["-Wl,--as-needed"]

# And nothing undefined: what is missing fails here, not when the object is loaded.
_COMPLETE_LINKOPTS = ["-Wl,-z,defs"]

def _own(label):
    """A label of this repository, whichever repository the macro is called in."""
    return str(Label(label))

def _copts(srcs):
    """C flags when every source is C, C++ flags otherwise. A target holds one language."""
    if type(srcs) == type([]) and srcs and not [s for s in srcs if not (s.endswith(".c") or s.endswith(".h"))]:
        return _C_COPTS
    return _CXX_COPTS

def bps_cc_library(name, srcs = [], hdrs = [], copts = [], **kwargs):
    """A library of the tree, C (all sources .c) or C++. Include its headers by their path from the root."""
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _copts(srcs) + copts,
        linkstatic = 1,
        **kwargs
    )

def bps_cc_binary(name, srcs, copts = [], **kwargs):
    """A program."""
    native.cc_binary(name = name, srcs = srcs, copts = _copts(srcs) + copts, linkstatic = 1, **kwargs)

def bps_cc_test(name, srcs, deps = [], copts = [], data = [], size = "small", **kwargs):
    """A GoogleTest test; main() comes with it. Name a larger `size` where a minute is not enough."""
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _copts(srcs) + copts,
        linkstatic = 1,
        size = size,
        data = data + select({
            _own("//tools/sanitizers:asan"): [_own("//tools/sanitizers:lsan.supp")],
            _own("//tools/sanitizers:tsan"): [_own("//tools/sanitizers:tsan.supp")],
            "//conditions:default": [],
        }),
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )

def bps_cc_fuzz_test(name, srcs, deps, corpus, **kwargs):
    """A fuzz target (LLVMFuzzerTestOneInput): as a plain test its corpus and variations of it; with --config=fuzz libFuzzer.

    Args:
      name: of the test
      srcs: the target
      deps: of it
      corpus: the folder of its corpus, in this package
      **kwargs: of cc_test
    """
    native.cc_test(
        name = name,
        srcs = srcs + ["//tests/fuzz:fuzz_main.cc"],
        copts = _CXX_COPTS,
        local_defines = select({
            "//tools/bazel:with_fuzz": ["BPS_LIBFUZZER"],
            "//conditions:default": [],
        }),
        linkopts = select({
            "//tools/bazel:with_fuzz": ["-Wl,--wrap=__sanitizer_cov_trace_pc"],
            "//conditions:default": [],
        }),
        linkstatic = 1,
        args = ["%s/%s" % (native.package_name(), corpus)],
        data = native.glob([corpus + "/*"]) + select({
            "//tools/sanitizers:asan": ["//tools/sanitizers:lsan.supp"],
            "//tools/sanitizers:tsan": ["//tools/sanitizers:tsan.supp"],
            "//conditions:default": [],
        }),
        deps = deps,
        **kwargs
    )

def bps_cc_shared_library(
        name,
        version_script,
        deps,
        srcs = [],
        copts = [],
        linkopts = [],
        complete = True,
        **kwargs):
    """A shared object that exports what `version_script` names.

    Args:
      name: file name of the object, such as libbyteps.so
      version_script: linker script that names the exports
      deps: libraries linked into it; mark `alwayslink` what is reached through an exported function alone
      srcs: sources of its own, if any
      copts: additional flags for those
      linkopts: additional flags for the linker
      complete: whether undefined symbols are an error
      **kwargs: of cc_binary
    """
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _copts(srcs) + copts,
        linkshared = 1,
        linkstatic = 1,
        deps = deps,
        additional_linker_inputs = [version_script],
        linkopts = _SHARED_LINKOPTS + (_COMPLETE_LINKOPTS if complete else []) +
                   ["-Wl,--version-script=$(location %s)" % version_script] + linkopts,
        **kwargs
    )

def bps_cc_python_extension(name, srcs, deps = [], copts = [], **kwargs):
    """A Python module `<name>.so` on pybind11; Python itself provides what stays undefined in it."""
    bps_cc_shared_library(
        name = name + ".so",
        version_script = _own("//tools/bazel:python_extension.lds"),
        srcs = srcs,
        copts = copts,
        complete = False,
        deps = deps + ["@pybind11"],
        **kwargs
    )

def bps_cc_framework_shim(name, deps, visibility = ["//:internal"], **kwargs):
    """A framework's shared object `libbyteps_<name>.so`: kernels on abi/byteps.h (frameworks/common/README.md).

    Args:
      name: the framework, such as "tensorflow"
      deps: the kernels; mark `alwayslink` what is reached by its name alone, or registers itself
      visibility: of the object
      **kwargs: of bps_cc_shared_library
    """
    library = "libbyteps_%s.so" % name
    bps_cc_shared_library(
        name = library,
        version_script = "//frameworks/common:shim.lds",
        deps = deps + ["//frameworks/common:shim"],
        visibility = visibility,
        **kwargs
    )
    native.filegroup(
        name = name + "_shim",
        srcs = [library],
        visibility = visibility,
    )

def bps_cc_plugin(name, kind, entry, deps, local_defines = [], visibility = None, version_script = None, **kwargs):
    """A plugin: a shared object with one exported function, and the same plugin as a library for tests.

    Makes
      :<name>                            the shared object libbyteps_<kind>_<name>.so
      :<name>_builtin                    the plugin as a library, its entry renamed to bps_<kind>_plugin_v1_<name>, so
                                         that a test can hold several and register them without a file

    Args:
      name: the plugin's name, as BYTEPS_TRANSPORT or BYTEPS_SCHEDULER gives it
      kind: "transport", "scheduler" or "device"
      entry: the source file that defines bps_<kind>_plugin_v1; nothing else in it needs to be visible
      deps: the implementation, and //abi
      local_defines: for the entry; lets one source be the entry of several plugins
      visibility: of both targets; in this repository all of it, unless said otherwise
      version_script: of a plugin that exports more than its entry
      **kwargs: of the entry's libraries
    """
    if kind not in ("transport", "scheduler", "device"):
        fail("bps_cc_plugin %s: kind is \"transport\", \"scheduler\" or \"device\", not \"%s\"" % (name, kind))
    if visibility == None:
        visibility = [_own("//:internal")] if native.repository_name() == "@" + Label("//:BUILD").workspace_name else ["//visibility:private"]
    symbol = "bps_%s_plugin_v1" % kind
    bps_cc_library(
        name = name + "_entry",
        srcs = [entry],
        local_defines = local_defines,
        deps = deps,
        # The linker sees no reference to an entry point and would drop it.
        alwayslink = 1,
        visibility = ["//visibility:private"],
        **kwargs
    )
    bps_cc_library(
        name = name + "_builtin",
        srcs = [entry],
        local_defines = local_defines + ["%s=%s_%s" % (symbol, symbol, name)],
        deps = deps,
        visibility = visibility,
        **kwargs
    )
    library = "libbyteps_%s_%s.so" % (kind, name)
    bps_cc_shared_library(
        name = library,
        version_script = version_script or _own("//tools/bazel:%s_plugin.lds" % kind),
        deps = [":%s_entry" % name],
        visibility = visibility,
    )
    native.filegroup(
        name = name,
        srcs = [library],
        visibility = visibility,
    )

def bps_proto_lite_library(name, src, visibility = None):
    """C++ classes of one .proto file on the lite runtime: `#include "core/control/control.pb.h"` for core/control/control.proto."""
    if not src.endswith(".proto"):
        fail("bps_proto_lite_library %s: %s is no .proto file" % (name, src))
    stem = src[:-len(".proto")]

    # From another workspace this one is below external/, where its names begin.
    repository = native.repository_name().lstrip("@")
    below = "external/" + repository if repository else "."
    out = "$(GENDIR)/" + below if repository else "$(GENDIR)"
    native.genrule(
        name = name + "_generated",
        srcs = [src],
        outs = [stem + ".pb.h", stem + ".pb.cc"],
        cmd = "$(location @protobuf_source//:protoc) --proto_path=%s --cpp_out=lite:%s $(location %s)" % (below, out, src),
        tools = ["@protobuf_source//:protoc"],
        message = "Generating " + stem + ".pb.h",
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        hdrs = [stem + ".pb.h"],
        copts = ["-w", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-gnu-unique"],
        linkstatic = 1,
        deps = ["//third_party/protobuf_lite"],
        visibility = visibility,
    )
