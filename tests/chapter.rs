//! docs/CONTINUATIONS.md shows the code of the example that it explains.

#[test]
fn the_chapter_on_continuations_quotes_the_example() {
    let chapter = include_str!("../docs/CONTINUATIONS.md");
    let example = include_str!("../examples/continuations.rs");
    let quotes: Vec<_> = chapter.split("```rust\n").skip(1).collect();
    assert!(quotes.len() > 4, "the chapter quotes the example");
    for quote in quotes {
        let (code, _) = quote.split_once("```").expect("a quote has an end");
        for function in code.split("\n\n") {
            assert!(
                example.contains(function.trim_end()),
                "not in the example:\n{function}"
            );
        }
    }
}
