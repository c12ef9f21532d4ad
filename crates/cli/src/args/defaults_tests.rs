//! Every default of the command line is that of a config type: in what the help shows, and in what a line without flags becomes.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use engine::corpus::{CorpusConfig, OnError};
use engine::duplicates::{DuplicatePolicy, DuplicatesConfig, Measure, OnDuplicate};
use engine::encoder::{Device, EmbedderConfig, Pooling, Precision, QueryEncoder, pull};
use engine::index::{IndexConfig, MigrateConfig};
use engine::language::LanguageChoice;
use engine::query::{JudgedConfig, MAX_HITS, RecallConfig, Rerank, SearchConfig};
use engine::saved::MatchRequest;
use engine::topics::TopicsConfig;
use methods::Training;
use micpq::pipeline::{BuildConfig, FillConfig};
use serve::ServeConfig;
use train::Preset;
use train::evaluate::EvaluateConfig;
use train::query_encoder::DistillConfig;
use train::vectors::VectorViews;
use train::views::ViewChoice;

use crate::program::{Args, Command};

/// Command, argument and default. No command means: wherever it is.
type Listed = (&'static str, &'static str, String);

/// The values that the help shows in brackets.
fn values() -> Vec<Listed> {
    let (build, distill, topics) = (BuildConfig::default(), DistillConfig::default(), TopicsConfig::default());
    let (search, recall, judged) = (SearchConfig::default(), RecallConfig::default(), JudgedConfig::default());
    vec![
        ("", "device", Device::default().to_string()),
        ("", "on_error", OnError::default().to_string()),
        ("", "on_duplicate", OnDuplicate::default().to_string()),
        ("", "language", LanguageChoice::default().to_string()),
        ("", "query_encoder", QueryEncoder::default().to_string()),
        ("", "store", IndexConfig::default().store.to_string()),
        ("", "rerank_vectors", build.index.rerank_vectors.to_string()),
        ("", "bits", build.training.bits().to_string()),
        ("", "input", build.training.input().to_string()),
        ("", "seed", build.training.seed().to_string()),
        ("", "sample", build.sample.to_string()),
        ("", "commit_every", FillConfig::UPDATES.to_string()),
        ("index migrate", "commit_every", MigrateConfig::default().commit_every.to_string()),
        ("search", "k", search.k.to_string()),
        ("search", "hybrid", search.hybrid.to_string()),
        ("search", "kind", search.kind.to_string()),
        ("search", "rerank", search.rerank.to_string()),
        ("search", "group", search.group.to_string()),
        ("index recall", "queries", recall.queries.to_string()),
        ("index recall", "k", recall.k.to_string()),
        ("index recall", "windows", recall.windows.to_string()),
        ("index recall", "rerank", recall.rerank.to_string()),
        ("judge", "rerank", judged.rerank.to_string()),
        ("judge", "hybrid", judged.hybrid.to_string()),
        ("eval", "seed", EvaluateConfig::default().seed.to_string()),
        ("import", "noise", VectorViews::NOISE.to_string()),
        ("topics", "seed", topics.seed.to_string()),
        ("topics", "terms", topics.terms.to_string()),
        ("topics", "typical", topics.typical.to_string()),
        ("dedup", "neighbours", DuplicatesConfig::default().neighbours.to_string()),
        ("watch run", "limit", MatchRequest::default().limit.to_string()),
        ("distill", "documents", distill.documents.to_string()),
        ("distill", "width", distill.width.to_string()),
        ("distill", "code_width", distill.code_width.to_string()),
        ("distill", "epochs", distill.epochs.to_string()),
        ("distill", "learning_rate", distill.learning_rate.to_string()),
        ("distill", "seed", distill.seed.to_string()),
        ("encoder pull", "name", pull::DEFAULT.into()),
        ("encoder info", "name", pull::DEFAULT.into()),
        // The program's own: no library has these options.
        ("dedup", "show", "20".into()),
        ("export", "k", "1000".into()),
        ("export", "tag", "micpq".into()),
        ("judge", "split", "test".into()),
        ("paper", "plan", "quick".into()),
        ("paper", "output", "paper".into()),
    ]
}

/// The defaults that the help tells in words.
fn sentences() -> Vec<Listed> {
    let corpus = CorpusConfig::default();
    let likeness =
        format!("Default: {} by words, {} by vectors", Measure::Words.threshold(), Measure::Vectors.threshold());
    let views = [
        Training::named(BuildConfig::METHOD, BuildConfig::BITS).unwrap().views().unwrap(),
        ViewChoice::suited_to(Pooling::Mean),
        ViewChoice::suited_to(Pooling::Cls),
    ];
    let [noise, mean, cls] = views.map(|choice| choice.to_string());
    assert_eq!(EmbedderConfig::default().precision, Precision::AUTO);
    let exact = "paper:agnews".parse::<Preset>().unwrap().embedding().precision;
    vec![
        ("", "encoder", format!("Default: {}, or that of the preset", EmbedderConfig::default().encoder)),
        ("", "method", format!("Default: {}, and micpq with --preset", BuildConfig::METHOD)),
        (
            "",
            "views",
            format!("Default: that of the method, {noise} for distilled, {mean} or (CLS pooling) {cls} for micpq"),
        ),
        (
            "",
            "precision",
            format!("Default: the model's own; auto for a new model, {exact} with a preset of the paper"),
        ),
        ("", "dropout", format!("Default: {}", BuildConfig::DROPOUT)),
        ("", "max_extract_seconds", format!("Default: {}", corpus.max_extract_seconds)),
        ("", "max_row_bytes", format!("Default: {} ({} MiB)", corpus.max_row_bytes, corpus.max_row_bytes >> 20)),
        ("", "max_unpacked_bytes", format!("Default: {} GiB", corpus.max_unpacked_bytes >> 30)),
        ("", "threshold", likeness.clone()),
        ("", "duplicate_threshold", likeness),
        ("serve", "listen", format!("Default: {}", ServeConfig::default().listen)),
        ("search", "k", format!("1 to {MAX_HITS}")),
        ("search", "rerank", format!("auto ({} if the index stores rerank vectors)", Rerank::DEFAULT)),
        // The program's own.
        ("search", "weights", "Default: 1 each".into()),
        ("cache clear", "older_than", "Default: 0, all entries".into()),
        ("paper", "jobs", "Default: one per thread, at most 4".into()),
    ]
}

/// Every argument of the program that takes a value, with the words of its command.
fn arguments(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Arg)>) {
    let valued = command.get_arguments().filter(|argument| argument.get_action().takes_values());
    found.extend(valued.map(|argument| (path.to_owned(), argument.clone())));
    for below in command.get_subcommands() {
        arguments(below, format!("{path} {}", below.get_name()).trim(), found);
    }
}

#[test]
fn the_help_shows_the_defaults_of_the_config_types() {
    let (values, sentences, mut found) = (values(), sentences(), Vec::new());
    arguments(&Args::command(), "", &mut found);
    let of = |list: &[Listed], path: &str, id: &str| {
        let named = |command: &str| list.iter().position(|(c, i, _)| *c == command && *i == id);
        named(path).or_else(|| named(""))
    };
    let (mut shown, mut told) = (BTreeSet::new(), BTreeSet::new());
    for (path, argument) in &found {
        let (id, place) = (argument.get_id().as_str(), format!("{path} {}", argument.get_id()));
        let value = argument.get_default_values().iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        if !value.is_empty() {
            let at = of(&values, path, id).unwrap_or_else(|| panic!("{place}: the default has no config type here"));
            assert_eq!(value.join(","), values[at].2, "{place}");
            shown.insert(at);
        }
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        match of(&sentences, path, id) {
            Some(at) => {
                assert!(help.contains(&sentences[at].2), "{place}: \"{}\" is not in: {help}", sentences[at].2);
                told.insert(at);
            }
            None => {
                let default = help.split_once("Default: ").map_or("", |(_, default)| default);
                assert!(
                    !default.contains(|c: char| c.is_ascii_digit()),
                    "{place}: the default has no config type here"
                );
            }
        }
    }
    assert_eq!(
        (shown.len(), told.len()),
        (values.len(), sentences.len()),
        "a default that is listed here is not shown"
    );
}

#[test]
fn a_line_without_flags_has_the_default_configs() {
    let parse = |line: &str| Args::try_parse_from(line.split(' ')).unwrap().command;
    let Command::Search(search) = parse("micpq search news.micpq oil") else { panic!() };
    assert_eq!(search.config(), SearchConfig::default());
    let Command::Build(build) = parse("micpq build news.jsonl -o news.micpq") else { panic!() };
    assert_eq!(build.source.config(), CorpusConfig::default());
    assert_eq!(build.duplicates.policy(), DuplicatePolicy::default());
    let (config, expected) = (build.config().unwrap(), BuildConfig::default());
    assert_eq!(format!("{:?}", config.embedding), format!("{:?}", expected.embedding));
    assert_eq!(format!("{:?}", config.index), format!("{:?}", expected.index));
    assert_eq!(format!("{:?}", config.fill), format!("{:?}", expected.fill));
    assert_eq!(config.training.record(), expected.training.suited_to(Pooling::Mean).unwrap().record());
    assert_eq!((config.dropout, config.sample, config.target_recall), (expected.dropout, expected.sample, None));
    assert_eq!((config.language, config.chunk), (expected.language, expected.chunk));
    assert_eq!((config.query_encoder, config.measure_recall), (expected.query_encoder, expected.measure_recall));
}
