//! Passes the commit that is built to the compiler, as the environment variable `FARM_COMMIT`.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=../../.git/HEAD");
    println!("cargo:rerun-if-changed=../../.git/logs/HEAD");
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output();
    if let Ok(output) = described
        && output.status.success()
        && let Ok(commit) = String::from_utf8(output.stdout)
    {
        println!("cargo:rustc-env=FARM_COMMIT={}", commit.trim());
    }
}
