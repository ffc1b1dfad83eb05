//! spider in the race: a `Website` for each host, and a line of JSON for each page.
//!
//!     spider-peer --seeds FILE --output FILE --concurrency N --per-host N
//!
//! spider limits the requests of one `Website` and knows no limit for all of them. So each one holds as many
//! of the N permits as it may have requests under way, until its host is done. It looks for links in every
//! page, also where there are none.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use serde::Serialize;
use spider::page::Page;
use spider::website::{CrawlStatus, Website};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::JoinSet;

/// One page in the output.
#[derive(Serialize)]
struct Record<'a> {
    url: &'a str,
    status: u16,
    headers: String,
    body: Cow<'a, str>,
}

impl<'a> Record<'a> {
    fn of(page: &'a Page) -> serde_json::Result<Self> {
        let headers: BTreeMap<&str, Cow<str>> = page
            .headers
            .iter()
            .flatten()
            .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
            .collect();
        Ok(Record {
            url: page.get_url(),
            status: page.status_code.as_u16(),
            headers: serde_json::to_string(&headers)?,
            body: page.get_html_cow(),
        })
    }
}

/// Until every `Website` is dropped. The channel overwrites what is not read in time: that is an error here.
async fn write(mut pages: Receiver<Page>, mut output: impl Write) -> io::Result<()> {
    loop {
        match pages.recv().await {
            Ok(page) => {
                serde_json::to_writer(&mut output, &Record::of(&page)?)?;
                output.write_all(b"\n")?;
            }
            Err(RecvError::Closed) => return output.flush(),
            Err(RecvError::Lagged(lost)) => {
                return Err(io::Error::other(format!("spider dropped {lost} pages")));
            }
        }
    }
}

/// What all hosts share: the client with its connections, the channel of pages, the callback.
fn template(url: &str, capacity: usize) -> (Website, Receiver<Page>) {
    let mut website = Website::new(url);
    website.with_depth(0); // no limit
    website
        .set_on_link_find(|link, body| (link.inner().replace("&amp;", "&").as_str().into(), body));
    let pages = website.subscribe(capacity);
    let client = website.configure_http_client();
    website.set_http_client(client);
    (website, pages)
}

/// The `Website` of one host. It is set active, because an idle one forgets its seeds when it begins.
fn host(template: &Website, seeds: &[&str], limit: usize) -> Website {
    let mut website = template.clone();
    website.set_url(seeds[0]);
    website.with_concurrency_limit(Some(limit));
    website.set_extra_links(seeds.iter().map(|&seed| seed.into()).collect());
    website.set_status(CrawlStatus::Active);
    website
}

async fn crawl(seeds: &str, output: File, concurrency: usize, per_host: usize) -> io::Result<()> {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for url in seeds.lines() {
        hosts
            .entry(url.split('/').nth(2).unwrap_or_default())
            .or_default()
            .push(url);
    }
    let (template, pages) = template(seeds.lines().next().unwrap_or_default(), 4 * concurrency);
    let writing = tokio::spawn(write(pages, BufWriter::new(output)));
    let permits = Arc::new(Semaphore::new(concurrency));
    let mut crawls = JoinSet::new();
    for seeds in hosts.values() {
        let limit = per_host.min(seeds.len());
        let held = permits.clone().acquire_many_owned(limit as u32).await;
        let mut website = host(&template, seeds, limit);
        crawls.spawn(async move {
            website.crawl().await;
            drop(held);
        });
    }
    drop(template);
    crawls.join_all().await;
    writing.await?
}

fn argument(name: &str) -> io::Result<String> {
    let missing = || io::Error::other(format!("{name} is missing"));
    env::args()
        .skip_while(|word| word != name)
        .nth(1)
        .ok_or_else(missing)
}

fn number(name: &str) -> io::Result<usize> {
    argument(name)?
        .parse()
        .map_err(|error| io::Error::other(format!("{name}: {error}")))
}

fn main() -> io::Result<()> {
    let seeds = fs::read_to_string(argument("--seeds")?)?;
    let output = File::create(argument("--output")?)?;
    let work = crawl(
        &seeds,
        output,
        number("--concurrency")?,
        number("--per-host")?,
    );
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(work)
}
