//! Finds libbyteps.so: in BYTEPS_HOME/lib, else by pkg-config. Dependents get its folder as DEP_BYTEPS_LIBDIR.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["BYTEPS_HOME", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={}", name);
    }
    println!("cargo:rustc-link-lib=dylib=byteps");
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation links nothing
    }
    match library_folder() {
        Ok(folder) => {
            println!("cargo:rustc-link-search=native={}", folder.display());
            println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display()); // for the tests of this crate
            println!("cargo:libdir={}", folder.display());
        }
        Err(reason) => {
            eprintln!("{}", reason);
            std::process::exit(1);
        }
    }
}

fn library_folder() -> Result<PathBuf, String> {
    let remedy =
        "Install BytePS and set BYTEPS_HOME to its prefix (or to the folder of the Python package byteps), or \
                  PKG_CONFIG_PATH to the folder of byteps.pc.";
    if let Some(home) = env::var_os("BYTEPS_HOME").filter(|home| !home.is_empty()) {
        let folder = Path::new(&home).join("lib");
        return match folder.join("libbyteps.so").canonicalize() {
            Ok(_) => folder.canonicalize().map_err(|error| format!("{}: {}", folder.display(), error)),
            Err(error) => {
                Err(format!("libbyteps.so is not in {} (from BYTEPS_HOME): {}. {}", folder.display(), error, remedy))
            }
        };
    }
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let answer = Command::new(&program).args(["--print-errors", "--variable=libdir", "byteps"]).output();
    let failure = match answer {
        Ok(output) if output.status.success() => {
            let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
            if folder.join("libbyteps.so").exists() {
                return Ok(folder);
            }
            format!("byteps.pc says that it is in {}, where it is not", folder.display())
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        Err(error) => format!("{}: {}", program.to_string_lossy(), error),
    };
    Err(format!("libbyteps.so was not found. BYTEPS_HOME is not set; pkg-config byteps: {}. {}", failure, remedy))
}
