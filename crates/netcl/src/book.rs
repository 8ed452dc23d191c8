//! Runs the Rust listings of the README and the book as documentation tests (`docs/src/testing.md` says how).
#![cfg(any(test, doctest))]

/// One line per page with Rust listings; its documentation tests bear the module's name.
macro_rules! pages {
    ($($module:ident: $page:literal,)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../../../", $page))]
            mod $module {}
        )*

        /// The pages above, relative to the root of the repository.
        #[cfg(test)]
        const PAGES: &[&str] = &[$($page),*];
    };
}

pages! {
    readme: "README.md",
    introduction: "docs/src/introduction.md",
    getting_started: "docs/src/getting-started.md",
    quickstart_rust: "docs/src/quickstart/rust.md",
    tutorials_deploy: "docs/src/tutorials/deploy.md",
    onnx: "docs/src/onnx.md",
    cache: "docs/src/cache.md",
    capture: "docs/src/capture.md",
    reference_amp: "docs/src/reference/amp.md",
    reference_autograd: "docs/src/reference/autograd.md",
    reference_core: "docs/src/reference/core.md",
    reference_device: "docs/src/reference/device.md",
    reference_kernels: "docs/src/reference/kernels.md",
    reference_layers: "docs/src/reference/layers.md",
    reference_layers_ops: "docs/src/reference/layers-ops.md",
    reference_memory: "docs/src/reference/memory.md",
    reference_metrics: "docs/src/reference/metrics.md",
    reference_nn: "docs/src/reference/nn.md",
    reference_ops: "docs/src/reference/ops.md",
    reference_opencl: "docs/src/reference/opencl.md",
    reference_optim: "docs/src/reference/optim.md",
    reference_tensor: "docs/src/reference/tensor.md",
    reference_trainer: "docs/src/reference/trainer.md",
    architecture: "docs/src/architecture.md",
    profiling: "docs/src/profiling.md",
    testing: "docs/src/testing.md",
    tuning: "docs/src/tuning.md",
}

#[cfg(test)]
mod tests {
    use super::PAGES;
    use std::path::{Path, PathBuf};

    /// Markdown files of the book, relative to the root.
    fn book_pages(root: &Path) -> Vec<String> {
        let mut folders: Vec<PathBuf> = vec![root.join("docs/src")];
        let mut pages = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    pages.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        pages.sort();
        pages
    }

    /// The info strings of the fences that open a listing, with their line numbers.
    fn listings(text: &str) -> Vec<(usize, &str)> {
        let mut open: Option<usize> = None;
        let mut found = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let content = line.trim_start();
            let ticks = content.len() - content.trim_start_matches('`').len();
            match open {
                None if ticks >= 3 => {
                    open = Some(ticks);
                    found.push((index + 1, content[ticks..].trim()));
                }
                // A longer fence may show shorter ones, so only one that is at least as long closes it.
                Some(opening) if ticks >= opening && content.trim_end().len() == ticks => open = None,
                _ => {}
            }
        }
        found
    }

    /// rustdoc takes a listing for Rust unless its info string names another language.
    fn is_rust(info: &str) -> bool {
        info.split([',', ' ']).next() == Some("rust")
    }

    #[test]
    fn every_page_with_a_rust_listing_is_run_and_every_listing_names_its_language() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        for page in book_pages(&root).iter().map(String::as_str).chain(["README.md"]) {
            let text = std::fs::read_to_string(root.join(page)).unwrap();
            for (line, info) in listings(&text) {
                assert!(!info.is_empty(), "{page}:{line}: name the listing's language (`text` if it has none)");
                assert!(
                    !is_rust(info) || PAGES.contains(&page),
                    "{page}:{line}: add the page to crates/netcl/src/book.rs"
                );
            }
        }
    }

    #[test]
    fn listings_are_recognised() {
        let text = "```rust\nlet x = 1;\n```\n````markdown\n```python,no_run\n```\n````\n```\nplain\n```\n";
        assert_eq!(listings(text), [(1, "rust"), (4, "markdown"), (8, "")]);
        assert!(is_rust("rust,no_run") && !is_rust("python") && !is_rust(""));
    }
}
