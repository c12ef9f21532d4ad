//! Chunks of texts for encoders with every kind of tokenizer.

use std::path::Path;

use engine::chunk::{ChunkConfig, ChunkSizes, Chunker};
use engine::encoder::{Embedder, EmbedderConfig};
use proptest::prelude::*;

fn embedder(name: &str, document_prompt: Option<&str>) -> Embedder {
    let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders").join(name);
    let encoder = encoder.to_string_lossy().into_owned();
    let document_prompt = document_prompt.map(str::to_owned);
    Embedder::load_local(&EmbedderConfig { encoder, document_prompt, ..EmbedderConfig::default() }).unwrap()
}

/// Headings, paragraphs and sentences of words, some of them long or of another script.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        8 => "[a-z]{1,9} ",
        2 => "[A-Z][a-z]{3}\\. ",
        1 => Just("\n\n".to_owned()),
        1 => Just("\n# Heading\n\n".to_owned()),
        1 => "[ぁ-ん]{1,20}",
        1 => "[a-z0-9]{30,60}",
        1 => Just("   \t ".to_owned()),
    ];
    prop::collection::vec(part, 0..120).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn chunks_cover_the_text_and_none_is_longer_than_the_encoder_takes(
        text in text(),
        tokens in 24usize..40,
        overlap in 0usize..6,
    ) {
        for (name, prompt) in
            [("bert", None), ("bert-instructed", Some("a text: ")), ("roberta", None), ("xlm-roberta", None), ("static", None)]
        {
            let embedder = embedder(name, prompt);
            let config = ChunkConfig { tokens: Some(tokens.min(embedder.config().max_tokens)), overlap: Some(overlap) };
            let sizes = config.sizes(&embedder).unwrap();
            let chunks = Chunker::new(sizes, &embedder).unwrap().split(&text);
            prop_assert!(!chunks.is_empty());
            prop_assert_eq!((chunks[0].start, chunks[chunks.len() - 1].end), (0, text.len()));
            for pair in chunks.windows(2) {
                prop_assert!(pair[0].start < pair[1].start && pair[1].start <= pair[0].end, "{name}: {chunks:?}");
            }
            let parts: Vec<&str> = chunks.iter().map(|chunk| &text[chunk.clone()]).collect();
            let counts: Vec<usize> = parts.iter().map(|part| embedder.count_tokens(part).unwrap().unwrap()).collect();
            // Blanks at the end may be tokens too; without them nothing is lost.
            let fits = |(part, count): (&&str, &usize)| {
                *count <= sizes.tokens || embedder.count_tokens(part.trim_end()).unwrap().unwrap() <= sizes.tokens
            };
            prop_assert!(parts.iter().zip(&counts).all(fits), "{name} {sizes}: {counts:?} {parts:?}");
        }
    }
}

#[test]
fn a_chunk_ends_where_a_section_ends_and_repeats_a_part_of_it() {
    let embedder = embedder("bert", None);
    let section = |name: &str| format!("# {name}\n\n{}\n\n", "oil price rises. ".repeat(3));
    let text = section("One") + &section("Two") + &section("Three");
    let chunks = Chunker::new(ChunkSizes { tokens: 32, overlap: 0 }, &embedder).unwrap().split(&text);
    let apart: Vec<&str> = chunks.into_iter().map(|chunk| &text[chunk]).collect();
    assert_eq!(apart.concat(), text);
    assert!(apart.len() >= 3 && apart.iter().filter(|chunk| chunk.starts_with("# ")).count() == 3, "{apart:?}");
    let line = "oil price rises ".repeat(40);
    let sizes = ChunkSizes { tokens: 32, overlap: 12 };
    let chunks = Chunker::new(sizes, &embedder).unwrap().split(&line);
    assert!(chunks.windows(2).all(|pair| pair[1].start < pair[0].end), "{chunks:?}");
}

#[test]
fn sizes_that_do_not_fit_the_encoder_are_refused() {
    let embedder_with = |prompt: &str| embedder("bert-instructed", Some(prompt));
    let limit = embedder_with("").config().max_tokens;
    let refused = |prompt: &str, chunk: &str| {
        chunk.parse::<ChunkConfig>().unwrap().sizes(&embedder_with(prompt)).unwrap_err().to_string()
    };
    assert!(refused("", &(limit + 1).to_string()).contains("longer than the encoder takes"));
    assert!(refused("", "8:5").contains("at most half"));
    assert!(refused("a prompt of some words: ", "8:1").contains("the encoder's prompt takes"));
    assert_eq!(ChunkConfig::default().sizes(&embedder_with("")).unwrap().tokens, limit);
}
