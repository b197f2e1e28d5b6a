"""The source of the protobuf-lite runtime, as tools/fetch_protobuf left it, and the installed compiler `protoc`.

Looked for in $BYTEPS_DEPS, then `.deps` of this checkout, then ~/.cache/byteps. Source and compiler must be of one
version; both missing things stop the build with the command that brings them.
"""

def _protobuf_source_impl(ctx):
    protoc = ctx.which("protoc")
    if not protoc:
        fail("protoc is missing: apt-get install protobuf-compiler (tools/setup does)")
    version = ctx.execute([protoc, "--version"]).stdout.strip().split(" ")[-1]

    candidates = [str(ctx.path(Label("//:WORKSPACE")).dirname) + "/.deps"]
    if ctx.os.environ.get("BYTEPS_DEPS"):
        candidates.insert(0, ctx.os.environ["BYTEPS_DEPS"])
    if ctx.os.environ.get("HOME"):
        candidates.append(ctx.os.environ["HOME"] + "/.cache/byteps")
    for candidate in candidates:
        source = ctx.path(candidate + "/protobuf-" + version + "/src")
        if source.exists:
            ctx.symlink(source, "src")
            ctx.symlink(protoc, "protoc")
            ctx.template("BUILD.bazel", ctx.attr.build_file)
            return
    fail("the source of protobuf {} is in none of {}: run tools/fetch_protobuf (tools/setup does)".format(
        version,
        ", ".join(candidates),
    ))

protobuf_source = repository_rule(
    implementation = _protobuf_source_impl,
    attrs = {
        "build_file": attr.label(default = "//third_party/protobuf:protobuf_source.BUILD.bazel"),
    },
    configure = True,
    environ = ["BYTEPS_DEPS", "HOME", "PATH"],
    local = True,
)
