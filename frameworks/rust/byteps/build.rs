//! Lets the tests and examples of this crate find libbyteps.so where byteps-sys found it. The build script of a program
//! that depends on this crate does the same (see README.md), unless the library is where the loader looks anyway.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = std::env::var("DEP_BYTEPS_LIBDIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder);
        println!("cargo:libdir={}", folder);
    }
}
