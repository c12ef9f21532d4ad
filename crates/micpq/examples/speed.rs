use micpq::{encoder::*, Silent};
fn main() {
    let name = std::env::args().nth(1).unwrap();
    let e = Encoder::load(&pull::locate(&name).unwrap()).unwrap();
    let text = std::fs::read_to_string("/tmp/n/ag.txt").unwrap();
    let n: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let lines: Vec<&str> = text.lines().take(n).collect();
    let t = std::time::Instant::now();
    let ids = e.tokenizer().encode(&lines, 51).unwrap();
    let tokens: usize = ids.iter().map(|i| i.len()).sum();
    println!("tokenize {} docs {} tokens {:.3}s", n, tokens, t.elapsed().as_secs_f64());
    for d in [None, Some(Dropout::new(0.3, 1, 1, 0)), None, Some(Dropout::new(0.3, 1, 1, 0))] {
        let t = std::time::Instant::now();
        e.encode(&ids, Pooling::Mean, d, &Silent).unwrap();
        println!("{:?} {:.0} tokens/s", d.is_some(), tokens as f64 / t.elapsed().as_secs_f64());
    }
}
