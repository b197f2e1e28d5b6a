"""clang-tidy over every C and C++ source of the tree, one action each, so that only what has changed is looked at again.

    bazel build --config=clang_tidy //...

The checks are in .clang-tidy. Generated sources are left out, and third-party headers are system headers.
"""

# Flags of gcc that clang does not know, or that are for code and not for meaning.
_FOR_GCC = ("-W", "-f", "-m", "-O", "-g")

def _context(ctx, deps):
    return cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in deps if CcInfo in dep]).compilation_context

def _files(targets):
    return [file for target in targets for file in target.files.to_list()]

def _clang_tidy_impl(target, ctx):
    if target.label.workspace_name or not hasattr(ctx.rule.attr, "srcs"):
        return []
    own = _files(ctx.rule.attr.srcs)
    sources = [file for file in own if file.is_source and file.extension in ("c", "cc")]
    if not sources or not ctx.rule.kind.startswith("cc_"):
        return []
    context = _context(ctx, getattr(ctx.rule.attr, "deps", []))
    headers = own + _files(getattr(ctx.rule.attr, "hdrs", []))
    flags = ["-iquote", ".", "-isystem", ctx.bin_dir.path, "-isystem", ctx.genfiles_dir.path]
    for folder in depset(transitive = [context.includes, context.system_includes, context.quote_includes]).to_list():
        if folder != ".":
            flags += ["-isystem", folder]
    local_defines = getattr(ctx.rule.attr, "local_defines", []) + getattr(ctx.rule.attr, "defines", [])
    # (A quote in a define is escaped for a shell.)
    flags += ["-D" + define.replace("\\\"", "\"") for define in local_defines + context.defines.to_list()]
    flags += [flag for flag in getattr(ctx.rule.attr, "copts", []) if not flag.startswith(_FOR_GCC)]

    reports = []
    for source in sources:
        report = ctx.actions.declare_file("%s.%s.clang-tidy" % (target.label.name, source.basename))
        language = ["-std=c11"] if source.extension == "c" else ["-std=c++20"]
        ctx.actions.run_shell(
            # What it says of code that is not ours ("N warnings generated") is on stderr.
            command = 'out=$1; shift; clang-tidy-14 --quiet "$@" >"$out" 2>"$out.err" && exit; cat "$out"; ' +
                      'grep -q . "$out" || cat "$out.err"; exit 1',
            arguments = [report.path, source.path, "--"] + language + flags,
            inputs = depset([source, ctx.file._config] + headers, transitive = [context.headers]),
            outputs = [report],
            mnemonic = "ClangTidy",
            progress_message = "clang-tidy %s" % source.short_path,
            use_default_shell_env = True,
        )
        reports.append(report)
    return [OutputGroupInfo(clang_tidy = depset(reports))]

clang_tidy = aspect(
    implementation = _clang_tidy_impl,
    attrs = {"_config": attr.label(default = "//:.clang-tidy", allow_single_file = True)},
)
