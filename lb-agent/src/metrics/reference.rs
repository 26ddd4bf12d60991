//! The reference of all metrics, `docs/metrics.md`, out of the code.

use std::{env, fmt::Write as _, fs, path::Path};

use super::{Description, descriptions};

/// What makes the test write the page instead of comparing it.
const UPDATE: &str = "LB_UPDATE_DOCS";

const HEAD: &str = "\
# Metrics

<!-- Written by `LB_UPDATE_DOCS=1 cargo test -p lb-agent --lib reference`. -->

`--metrics-bind-address` (127.0.0.1:10249) answers at `/metrics` in the format OpenMetrics. No series carries the name of a
service, a pod or a link: their number does not grow with the cluster. A metric that has no meaning on a plane is absent there.
`deploy/grafana/lb-agent.json` shows them and `deploy/prometheus/alerts.yaml` has rules; a test holds both to what is on this page.

## Ours

";

const THEIRS: &str = "
## kube-proxy's

Names, labels and meaning are kube-proxy's, so that its dashboards and alerts go on working. Histograms have its bounds and
some finer ones, since most of what is measured here is faster than its smallest. Of kube-proxy's own, these are not here:
the counts of rules and of failed restores of its modes iptables and nftables, what iptables drops and accepts
(`kubeproxy_iptables_…`), and the reconciliation of connection tracking (`kubeproxy_conntrack_reconciler_…`), which nothing
here depends on.

";

const TABLE: &str = "| Metric | Kind | Labels | Plane | Meaning |\n|---|---|---|---|---|\n";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let is_theirs = |description: &&Description| description.name.starts_with("kubeproxy_");
    page += TABLE;
    descriptions()
        .filter(|it| !is_theirs(it))
        .for_each(|it| describe(it, &mut page));
    page += THEIRS;
    page += TABLE;
    descriptions().filter(is_theirs).for_each(|it| describe(it, &mut page));
    page
}

fn describe(description: &Description, page: &mut String) {
    let Description { kind, labels, help, .. } = description;
    // A histogram is known by what its three series have in common.
    let name = match &description.series()[..] {
        [name] => name.clone(),
        _ => description.name.to_owned(),
    };
    let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
    let plane = description.plane.map_or("both", |plane| plane.word());
    writeln!(page, "| `{name}` | {kind} | {} | {plane} | {help} |", labels.join(", ")).unwrap();
}

#[test]
fn the_reference_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = page();
    if env::var_os(UPDATE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == page,
        "docs/metrics.md is out of date: {UPDATE}=1 cargo test -p lb-agent --lib reference"
    );
}
