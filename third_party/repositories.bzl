"""Every external repository of the build. Nothing is downloaded: all of them wrap what the system has.

README.md in this folder says what each is used for, and from which version on.
"""

load("//third_party:pkg_config.bzl", "pkg_config")
load("//third_party/absl:absl.bzl", "absl")
load("//third_party/cuda:cuda.bzl", "cuda")
load("//third_party/protobuf:protobuf_source.bzl", "protobuf_source")
load("//third_party/python:python_headers.bzl", "pybind11", "python_headers")

def _bazel_rules(checkout):
    # Repositories that Bazel itself refers to and would otherwise download. Named before the implicit ones, which
    # give way.
    for name in ["rules_cc", "rules_java", "rules_proto", "remote_coverage_tools"]:
        if not native.existing_rule(name):
            native.local_repository(name = name, path = checkout + "third_party/bazel/" + name)

def repositories(checkout = ""):
    """Declares the repositories; WORKSPACE calls this once.

    Args:
      checkout: in another workspace the folder of this one, as its local_repository has it: "../byteps"
    """
    _bazel_rules(checkout + "/" if checkout else "")

    absl(name = "com_google_absl")
    pkg_config(
        name = "com_google_googletest",
        apt = "libgtest-dev libgmock-dev",
        targets = {"gtest": ["gmock", "gtest"], "gtest_main": ["gmock_main", "gmock", "gtest"]},
    )
    pkg_config(
        name = "com_google_protobuf",
        apt = "libprotobuf-dev",
        targets = {"protobuf": ["protobuf"]},
    )
    pkg_config(name = "glog", apt = "libgoogle-glog-dev", targets = {"glog": ["libglog"]})
    pkg_config(name = "libfabric", apt = "libfabric-dev", targets = {"libfabric": ["libfabric"]})
    pkg_config(name = "libsodium", apt = "libsodium-dev", targets = {"libsodium": ["libsodium"]})
    pkg_config(name = "highway", apt = "libhwy-dev", headers_only = True, targets = {"highway": ["libhwy"]})
    python_headers(name = "python_headers")
    pybind11(name = "pybind11")
    protobuf_source(name = "protobuf_source")
    cuda(name = "cuda")
