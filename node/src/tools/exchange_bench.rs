//! `dnode bench exchange`: what one exchange of a fragment takes on this machine, part by part, beside
//! what its memory and its paths would allow.
//!
//! Nothing here is estimated: memory and paths are measured by themselves, in turns with the exchange.

mod halves;
mod path;

use std::fmt::Write as _;

use dnode_network::Carrier;
use dnode_protocol::frame::Codec;

use self::halves::{Halves, memory_rate};
use self::path::{Pair, Rate};
use super::link_bench::{CARRIERS, LinkError};

/// Codecs that are measured: the exact one, and those of each width that are in use.
const CODECS: [Codec; 4] = [Codec::F32, Codec::Int8, Codec::Int4, Codec::Int2];
/// Exchanges of each codec.
const TURNS: usize = 40;
/// Bytes of one number in memory.
const NUMBER_BYTES: usize = size_of::<f32>();

/// Measures this machine; a text for a person. With `trusted`, TCP without TLS as well.
///
/// # Errors
/// [`LinkError`].
pub async fn measure(elements: usize, trusted: bool) -> Result<String, LinkError> {
    let memory = memory_rate(elements);
    let halves: Vec<Halves> =
        CODECS.iter().map(|&codec| Halves::measure(codec, elements, TURNS)).collect();
    let mut text = format!(
        "one exchange of {elements} parameters, milliseconds (medians of {TURNS}), and what memory and path would allow\n\
         memory: {:.1} GB/s read and written by one core\n\n\
         {:<16} {:<5} {:>7} {:>7} {:>7} {:>9} {:>7} {:>7} {:>7} {:>6}\n",
        memory / 1e9,
        "path",
        "code",
        "offer",
        "sent",
        "answer",
        "sent back",
        "apply",
        "in all",
        "limit",
        "times",
    );
    let mut rates = Vec::new();
    for carrier in CARRIERS {
        if carrier == Carrier::Direct(dnode_network::Kind::Plain) && !trusted {
            continue;
        }
        let Some(mut pair) = Pair::connect(carrier).await? else {
            let _ = writeln!(text, "{carrier}: not available");
            continue;
        };
        let rate = pair.rate().await?;
        for halves in &halves {
            let sent =
                [pair.send(&halves.offer, TURNS).await?, pair.send(&halves.reply, TURNS).await?];
            row(&mut text, (carrier, rate), halves, (sent, memory));
        }
        rates.push((carrier, rate));
        pair.end().await;
    }
    text.push('\n');
    for (carrier, Rate { bytes_per_second, cpu }) in rates {
        let _ = writeln!(
            text,
            "{carrier}: {:.2} GB/s, {cpu:.2} CPU seconds per GB of both ends",
            bytes_per_second / 1e9
        );
    }
    Ok(text)
}

fn row(
    text: &mut String,
    (carrier, rate): (Carrier, Rate),
    halves: &Halves,
    (sent, memory): ([f64; 2], f64),
) {
    let [offer, answer, apply] = halves.seconds;
    let all = offer + answer + apply + sent[0] + sent[1];
    let bytes = (halves.offer.bytes.len() + halves.reply.bytes.len()) as f64;
    let limit = halves.bytes_least() as f64 / memory + bytes / rate.bytes_per_second;
    let _ = writeln!(
        text,
        "{:<16} {:<5} {:>7.2} {:>7.2} {:>7.2} {:>9.2} {:>7.2} {:>7.2} {:>7.2} {:>6.1}",
        carrier.to_string(),
        halves.reply.codec.name(),
        1e3 * offer,
        1e3 * sent[0],
        1e3 * answer,
        1e3 * sent[1],
        1e3 * apply,
        1e3 * all,
        1e3 * limit,
        all / limit
    );
}

/// The middle of `values`.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
