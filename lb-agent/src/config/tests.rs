use clap::{Args as _, CommandFactory as _, Parser};

use super::*;
use crate::{
    desired::Distribution,
    model::{DetectLocal, NodePortAddress, Rules},
    plane::{choice::Wanted, ebpf::MapSizes},
};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn flags(flags: &[&str]) -> Result<Settings, clap::Error> {
    Flags::try_parse_from([&["lb-agent"], flags].concat()).map(|flags| flags.settings)
}

#[test]
fn a_flag_comes_before_the_file_and_the_file_before_the_default() {
    let file = Settings::parse("maxServices: 10\nmaxSlots: 20\nlink: ['eth.*=uplink']").unwrap();
    let settings = flags(&["--max-services", "1"]).unwrap().or(file);
    let config = Config::new(settings).unwrap();
    assert_eq!(config.sizes.services, 1);
    assert_eq!(config.sizes.slots, 20);
    assert_eq!(config.sizes.backends, MapSizes::default().backends);
    assert_eq!(config.link_rules, ["eth.*=uplink"]);
}

#[test]
fn every_setting_has_one_name_in_three_spellings() {
    let command = Settings::augment_args(clap::Command::new("lb-agent"));
    for argument in command.get_arguments() {
        let flag = argument.get_long().unwrap();
        let mut field = String::new();
        for word in flag.split('-') {
            let (first, rest) = word.split_at(1);
            let first = if field.is_empty() {
                first.into()
            } else {
                first.to_uppercase()
            };
            field += &(first + rest);
        }
        // A field that is not known is another error than one that is null.
        let error = Settings::parse(&format!("{field}: {{}}")).unwrap_err().to_string();
        assert!(!error.contains("unknown field"), "{flag}: {error}");
        let variable = argument.get_env().and_then(|variable| variable.to_str());
        let expected = format!("LB_AGENT_{}", flag.replace('-', "_").to_uppercase());
        assert_eq!(variable, Some(expected.as_str()));
    }
    Flags::command().debug_assert();
}

#[test]
fn rules_for_links_are_one_a_line_and_empty_lines_are_none() {
    let rules = |lines: &[&str], file: &str| {
        let lines: Vec<_> = lines.iter().flat_map(|lines| ["--link", lines]).collect();
        let settings = flags(&lines).unwrap().or(Settings::parse(file).unwrap());
        Config::new(settings).unwrap().link_rules
    };
    let expected = ["eth{1,2}=uplink", "tap.*=pod"];
    assert_eq!(rules(&["eth{1,2}=uplink\n\ntap.*=pod\n"], ""), expected);
    assert_eq!(rules(&["eth{1,2}=uplink", "tap.*=pod"], ""), expected);
    assert_eq!(rules(&["eth0=ignore"], "link: ['eth.*=uplink']"), ["eth0=ignore"]);
    assert_eq!(rules(&[""], "link: ['eth.*=uplink']"), ["eth.*=uplink"]);
    assert_eq!(rules(&["\n"], ""), [""; 0]);
}

#[test]
fn what_is_not_known_is_an_error_that_names_it() {
    let error = Settings::parse("maxServices: 1\nmaxService: 1")
        .unwrap_err()
        .to_string();
    assert!(error.contains("maxService`") && error.contains("line 2"), "{error}");
    let error = flags(&["--max-service", "1"]).unwrap_err().to_string();
    assert!(error.contains("--max-service"), "{error}");
}

#[test]
fn an_empty_file_sets_nothing() {
    for text in ["", "# Nothing.\n", "{}"] {
        assert_eq!(Settings::parse(text).unwrap(), Settings::default());
    }
}

#[test]
fn a_mark_is_one_bit() {
    let mark = |text| flags(&["--masquerade-mark", text]).map(|flags| flags.masquerade_mark);
    assert_eq!(mark("0x4000").unwrap(), Some(Mark::try_from(0x4000).unwrap()));
    assert_eq!(mark("16384").unwrap(), Some(Mark::try_from(0x4000).unwrap()));
    for wrong in ["0", "0x4001", "x"] {
        assert!(mark(wrong).is_err(), "{wrong}");
    }
    let file = Settings::parse("masqueradeMark: 0x8000").unwrap();
    assert_eq!(file.masquerade_mark, Some(Mark::try_from(0x8000).unwrap()));
    assert!(Settings::parse("masqueradeMark: 3").is_err());
}

#[test]
fn a_table_of_maglevs_has_a_prime_number_of_slots() {
    let size = |text| flags(&["--maglev-table-size", text]).map(|flags| flags.maglev_table_size.map(TableSize::get));
    assert_eq!(size("65521").unwrap(), Some(65_521));
    for (wrong, said) in [
        ("2040", "2040 is not a prime; the next one is 2053"),
        ("131070", "131070 is not a prime; the next one is 131071"),
        ("241", "241 is not within 251 and 131071"),
        ("131072", "131072 is not within 251 and 131071"),
        ("many", "not a number"),
    ] {
        let error = size(wrong).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert!(Settings::parse("maglevTableSize: 2040").is_err());
}

#[test]
fn health_is_told_at_an_address_with_or_without_port_or_nowhere() {
    let told_at = |settings: Settings| {
        let address = Config::new(settings).unwrap().healthz_address;
        address.map(|address| address.to_string())
    };
    assert_eq!(told_at(Settings::default()).as_deref(), Some("0.0.0.0:10256"));
    let table = [
        ("127.0.0.1:1", Some("127.0.0.1:1")),
        ("[::1]:1", Some("[::1]:1")),
        ("127.0.0.1", Some("127.0.0.1:10256")),
        ("::", Some("[::]:10256")),
        ("", None),
    ];
    for (text, expected) in table {
        let flag = flags(&["--healthz-bind-address", text]).unwrap();
        assert_eq!(told_at(flag).as_deref(), expected, "{text:?}");
        let file = Settings::parse(&format!("healthzBindAddress: '{text}'")).unwrap();
        assert_eq!(told_at(file).as_deref(), expected, "{text:?}");
    }
    for wrong in ["localhost:10256", ":10256", "127.0.0.1:65536"] {
        assert!(flags(&["--healthz-bind-address", wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn metrics_are_told_to_the_node_itself_unless_another_address_is_given() {
    let told_at = |flag: &[&str]| {
        let address = Config::new(flags(flag).unwrap()).unwrap().metrics_address;
        address.map(|address| address.to_string())
    };
    assert_eq!(told_at(&[]).as_deref(), Some("127.0.0.1:10249"));
    assert_eq!(told_at(&["--metrics-bind-address=::"]).as_deref(), Some("[::]:10249"));
    assert_eq!(
        told_at(&["--metrics-address=10.0.0.1:1"]).as_deref(),
        Some("10.0.0.1:1")
    );
    assert_eq!(told_at(&["--metrics-bind-address="]), None);
}

#[test]
fn a_plane_is_a_word_wherever_it_is_given() {
    let wanted = |settings: Settings| Config::new(settings).unwrap().plane;
    assert_eq!(wanted(Settings::default()), Wanted::Auto);
    for (word, expected) in [("auto", Wanted::Auto), ("ebpf", Wanted::Ebpf), ("ipvs", Wanted::Ipvs)] {
        assert_eq!(wanted(flags(&["--plane", word]).unwrap()), expected);
        assert_eq!(wanted(Settings::parse(&format!("plane: {word}")).unwrap()), expected);
    }
    let error = flags(&["--plane", "iptables"]).unwrap_err().to_string();
    assert!(
        error.contains("iptables") && error.contains("auto, ebpf, ipvs"),
        "{error}"
    );
}

#[test]
fn a_switch_may_be_turned_off_again() {
    let file = || Settings::parse("setSysctls: true").unwrap();
    assert_eq!(flags(&["--set-sysctls"]).unwrap().set_sysctls, Some(true));
    let settings = flags(&["--set-sysctls=false"]).unwrap().or(file());
    assert_eq!(settings.set_sysctls, Some(false));
}

#[test]
fn there_is_one_source() {
    let settings = Settings::parse("source: /manifests\nkubeconfig: /kubeconfig").unwrap();
    let error = Config::new(settings).unwrap_err();
    assert_eq!(error.to_string(), "source and kubeconfig exclude each other");
    let settings = Settings::parse("apiserver: http://127.0.0.1:8080").unwrap();
    let source = Source::ApiServer {
        kubeconfig: None,
        url: Some("http://127.0.0.1:8080".into()),
    };
    assert_eq!(Config::new(settings).unwrap().source, source);
}

fn rules(flags: Result<Settings, clap::Error>) -> Rules {
    Config::new(flags.unwrap()).unwrap().rules
}

#[test]
fn words_on_node_ports_are_one_list_in_each_spelling() {
    let words = |settings: Settings| {
        let words = settings.node_port_addresses.iter();
        words.map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = ["primary", "192.168.0.0/24", "2001:db8::/32"];
    let list = "primary,192.168.0.7/24,2001:db8::/32";
    assert_eq!(words(flags(&["--node-port-addresses", list]).unwrap()), expected);
    // kube-proxy's spelling.
    assert_eq!(words(flags(&["--nodeport-addresses", list]).unwrap()), expected);
    let file = || Settings::parse("nodePortAddresses: [primary, 192.168.0.7/24, '2001:db8::/32']").unwrap();
    assert_eq!(words(file()), expected);
    assert_eq!(
        words(flags(&["--node-port-addresses", "all"]).unwrap().or(file())),
        ["all"]
    );
    assert_eq!(words(flags(&[]).unwrap().or(file())), expected);

    let error = flags(&["--node-port-addresses", "primary,nowhere"]).unwrap_err();
    assert!(error.to_string().contains("\"nowhere\" is none of"), "{error}");
    assert!(Settings::parse("nodePortAddresses: [nowhere]").is_err());
}

#[test]
fn what_holds_for_every_service_is_the_default_unless_it_is_said() {
    assert_eq!(rules(flags(&[])), Rules::default());
    assert_eq!(
        rules(flags(&[
            "--node-port-addresses=localhost",
            "--masquerade-all",
            "--external-ips=false",
            "--detect-local-mode=NodeCIDR",
        ])),
        Rules {
            node_port_addresses: [NodePortAddress::Localhost].into_iter().collect(),
            masquerade_all: true,
            serve_external_ips: false,
            detect_local: DetectLocal::NodeCidr,
            distribution: Distribution::Random,
        }
    );
}
