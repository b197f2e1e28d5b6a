"""Finds the CUDA Toolkit where it is installed; everything builds without it.

@cuda//:cuda is a library (headers and a shared object to link) where the Toolkit was found, and a target that fails with
one sentence where it was not. Nothing depends on it unless --config=cuda asks for it. NCCL is found at run time.
"""

_ABSENT = """
load("@byteps//third_party/cuda:absent.bzl", "absent")

absent(
    name = "{name}",
    message = "{message}",
    visibility = ["//visibility:public"],
)
"""

_PRESENT = """
cc_library(
    name = "{name}",
    srcs = glob(["lib/{library}*"], allow_empty = True),
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

_NVCC = """
exports_files(["nvcc.sh"])

alias(
    name = "nvcc",
    actual = "nvcc.sh",
    visibility = ["//visibility:public"],
)
"""

def _environment(ctx, name):
    return ctx.os.environ.get(name, "")

def _first(ctx, homes, header):
    for home in homes:
        if home and ctx.path(home + "/" + header).exists:
            return home
    return None

def _library_folder(ctx, home):
    for folder in ["lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"]:
        if ctx.path(home + "/" + folder).exists:
            return home + "/" + folder
    return None

def _cuda_impl(ctx):
    homes = [_environment(ctx, "BYTEPS_CUDA_HOME"), _environment(ctx, "CUDA_HOME"), "/usr/local/cuda"]
    home = _first(ctx, homes, "include/cuda_runtime_api.h")
    if home == None:
        message = ("CUDA was asked for (--config=cuda), but no CUDA Toolkit was found: set BYTEPS_CUDA_HOME or " +
                   "CUDA_HOME to the folder that has include/cuda_runtime_api.h (looked in %s)." %
                   ", ".join([h for h in homes if h]))
        absent = [_ABSENT.format(name = name, message = message) for name in ("cuda", "nvcc")]
        ctx.file("BUILD.bazel", "\n".join(absent))
        return
    ctx.symlink(home + "/include", "include")

    # By its own path: it finds its parts from there.
    ctx.file("nvcc.sh", "#!/bin/sh\nexec '%s/bin/nvcc' \"$@\"\n" % home, executable = True)
    library = _environment(ctx, "BYTEPS_CUDA_LIB") or _library_folder(ctx, home)
    ctx.file("BUILD.bazel", _PRESENT.format(
        name = "cuda",
        library = "none",
        linkopts = repr(["-L" + library, "-lcudart"] if library else ["-lcudart"]),
    ) + _NVCC)

cuda = repository_rule(
    implementation = _cuda_impl,
    local = True,
    configure = True,
    environ = ["BYTEPS_CUDA_HOME", "BYTEPS_CUDA_LIB", "CUDA_HOME"],
)
