"""Finds the CUDA Toolkit and NCCL where they are installed; everything builds without them.

@cuda//:cuda and @nccl//:nccl are libraries (headers and a shared object to link) where the package was found, and
targets that fail with one sentence where it was not. Nothing depends on either unless --config=cuda asks for it.
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

def _nccl_impl(ctx):
    homes = [
        _environment(ctx, "BYTEPS_NCCL_HOME"),
        "/usr/local/nccl",  # BytePS's default
        _environment(ctx, "NCCL_HOME"),
        _environment(ctx, "CUDA_HOME"),
        "/usr/local/cuda",
        "/usr",
    ]

    # The packages nvidia-nccl-cu* bring headers and library, but no link of the plain name.
    wheels = ctx.execute(["sh", "-c", "ls -d \"$0\"/.venv/lib/python3*/site-packages/nvidia/nccl 2>/dev/null", str(ctx.path(Label("//:BUILD")).dirname)])
    homes += [line for line in wheels.stdout.split("\n") if line]
    home = _first(ctx, homes, "include/nccl.h")
    if home == None:
        ctx.file("BUILD.bazel", _ABSENT.format(
            name = "nccl",
            message = "CUDA was asked for (--config=cuda), but NCCL was not found: set BYTEPS_NCCL_HOME to the folder " +
                      "that has include/nccl.h, or pip install nvidia-nccl-cu12 (or -cu13) into .venv.",
        ))
        return
    ctx.symlink(home + "/include/nccl.h", "include/nccl.h")
    folder = _library_folder(ctx, home)
    name = "libnccl_static.a" if _environment(ctx, "BYTEPS_NCCL_LINK").upper() == "STATIC" else "libnccl.so.2"
    for candidate in [name, "libnccl.so"]:
        if folder and ctx.path(folder + "/" + candidate).exists:
            ctx.symlink(folder + "/" + candidate, "lib/" + candidate)
            break
    ctx.file("BUILD.bazel", _PRESENT.format(name = "nccl", library = "libnccl", linkopts = repr([])))

nccl = repository_rule(
    implementation = _nccl_impl,
    local = True,
    configure = True,
    environ = ["BYTEPS_NCCL_HOME", "BYTEPS_NCCL_LINK", "NCCL_HOME", "CUDA_HOME"],
)
