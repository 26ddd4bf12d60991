//! From the text of a file to objects.

use std::path::Path;

use serde_json::Value;
use serde_saphyr::Spanned;

use crate::{
    model::{AnyService, EndpointSlice, Event, Kind, Node, ObjectName, Pod, ServiceCidr, Update},
    objects::decode::{Decode, Decoded, FieldError, object_name},
};

/// What tells an object from all others.
pub(super) type Key = (Kind, ObjectName);

/// An object of one of the kinds that are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Object {
    Service(AnyService),
    EndpointSlice(EndpointSlice),
    ServiceCidr(ServiceCidr),
    Node(Node),
    Pod(Pod),
}

impl Object {
    /// That this is new or different.
    pub(super) fn applied(self) -> Event {
        match self {
            Self::Service(service) => Event::Services(Update::Apply(service)),
            Self::EndpointSlice(slice) => Event::EndpointSlices(Update::Apply(slice)),
            Self::ServiceCidr(cidr) => Event::ServiceCidrs(Update::Apply(cidr)),
            Self::Node(node) => Event::Node(Some(node)),
            Self::Pod(pod) => Event::Pods(Update::Apply(pod)),
        }
    }
}

/// That an object is gone.
pub(super) fn deleted((kind, name): Key) -> Event {
    match kind {
        Kind::Service => Event::Services(Update::Delete(name)),
        Kind::EndpointSlice => Event::EndpointSlices(Update::Delete(name)),
        Kind::ServiceCidr => Event::ServiceCidrs(Update::Delete(name)),
        Kind::Node => Event::Node(None),
        Kind::Pod => Event::Pods(Update::Delete(name)),
    }
}

/// An object that a file describes.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    /// Which object.
    pub(super) key: Key,
    /// Where in the file, from 1; a list's objects are all where the list is.
    pub(super) line: u64,
    /// The object and the parts of it that were left out, or what is wrong with it.
    pub(super) content: Result<(Object, Vec<FieldError>), String>,
}

/// A file that is no YAML or JSON, with what is wrong in which line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct SyntaxError(String);

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Syntax {
    Yaml,
    Json,
}

impl Syntax {
    /// How a file of this name is written; `None` where it is no manifest.
    pub(super) fn of(path: &Path) -> Option<Self> {
        if path.file_name()?.as_encoded_bytes().starts_with(b".") {
            return None;
        }
        match path.extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The objects of a file that a service proxy on `this_node` reads. Others are ignored.
pub(super) fn parse(text: &str, syntax: Syntax, this_node: &str) -> Result<Vec<Manifest>, SyntaxError> {
    let documents = match syntax {
        Syntax::Yaml => yaml(text)?,
        Syntax::Json => json(text)?,
    };
    let mut manifests = Vec::new();
    for (line, document) in documents {
        collect(document, line, this_node, &mut manifests);
    }
    Ok(manifests)
}

fn yaml(text: &str) -> Result<Vec<(u64, Value)>, SyntaxError> {
    // The limits are there for text from strangers. These files are the operator's.
    let options = serde_saphyr::options! {
        budget: None,
        with_snippet: false,
    };
    let documents: Vec<Spanned<Value>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| SyntaxError(error.to_string()))?;
    let documents = documents.into_iter();
    Ok(documents
        .map(|document| (document.referenced.line(), document.value))
        .collect())
}

fn json(text: &str) -> Result<Vec<(u64, Value)>, SyntaxError> {
    let documents = serde_json::Deserializer::from_str(text).into_iter();
    documents
        .map(|document| match document {
            Ok(document) => Ok((1, document)),
            Err(error) => Err(SyntaxError(error.to_string())),
        })
        .collect()
}

fn collect(document: Value, line: u64, this_node: &str, manifests: &mut Vec<Manifest>) {
    if document.is_null() {
        return;
    }
    let field = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (field("apiVersion").to_owned(), field("kind").to_owned());
    if let Some(item_kind) = kind.strip_suffix("List") {
        let Value::Object(mut list) = document else {
            return;
        };
        if let Some(Value::Array(items)) = list.remove("items") {
            for mut item in items {
                // The items of a ServiceList do not say what they are.
                if let (false, Value::Object(fields)) = (item_kind.is_empty(), &mut item) {
                    fields.entry("kind").or_insert_with(|| item_kind.into());
                    fields.entry("apiVersion").or_insert_with(|| version.clone().into());
                }
                collect(item, line, this_node, manifests);
            }
        }
        return;
    }

    let manifest = match (version.as_str(), kind.as_str()) {
        ("v1", "Service") => read(document, line, this_node, Object::Service),
        ("discovery.k8s.io/v1", "EndpointSlice") => read(document, line, this_node, Object::EndpointSlice),
        ("networking.k8s.io/v1", "ServiceCIDR") => read(document, line, this_node, Object::ServiceCidr),
        ("v1", "Pod") => read(document, line, this_node, Object::Pod),
        ("v1", "Node") => {
            let name = document.pointer("/metadata/name").and_then(Value::as_str);
            if name != Some(this_node) {
                tracing::debug!("line {line}: another node's object is ignored");
                return;
            }
            read(document, line, this_node, Object::Node)
        }
        _ => {
            tracing::debug!("line {line}: an object of kind {kind:?} of {version:?} is ignored");
            return;
        }
    };
    manifests.extend(manifest);
}

fn read<T: Decode>(document: Value, line: u64, this_node: &str, object: impl Fn(T) -> Object) -> Option<Manifest> {
    let metadata = document.get("metadata").cloned().unwrap_or_default();
    let name = object_name(T::KIND, &serde_json::from_value(metadata).unwrap_or_default());
    let key = (T::KIND, name);
    let decoded = serde_json::from_value(document)
        .map_err(|error| error.to_string())
        .and_then(|wire| T::decode(wire, this_node).map_err(|error| error.to_string()));
    let content = match decoded {
        Ok(Decoded::Object {
            object: decoded,
            skipped,
        }) => Ok((object(decoded), skipped)),
        Ok(Decoded::Ignored(reason)) => {
            tracing::debug!("line {line}: {} {} is ignored: {reason}", T::KIND, key.1);
            return None;
        }
        Err(reason) => Err(reason),
    };
    Some(Manifest { key, line, content })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> Vec<String> {
        describe(parse(text, Syntax::Yaml, "this-node").unwrap())
    }

    fn describe(manifests: Vec<Manifest>) -> Vec<String> {
        manifests
            .into_iter()
            .map(|Manifest { key, line, content }| {
                let error = content.err().map(|error| format!(": {error}")).unwrap_or_default();
                format!("{line} {} {}{error}", key.0, key.1)
            })
            .collect()
    }

    #[test]
    fn a_file_may_hold_many_documents() {
        let text = "\
# Nothing here.
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.1]}]
";
        assert_eq!(yaml(text), ["3 Service shop/web", "9 EndpointSlice shop/web-1"]);
    }

    #[test]
    fn lists_are_what_is_in_them() {
        let list = "\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1}}
- {apiVersion: v1, kind: Service, metadata: {name: b}, spec: {clusterIP: 10.96.0.2}}
";
        assert_eq!(yaml(list), ["1 Service default/a", "1 Service default/b"]);
        let json = r#"{ "apiVersion": "v1", "kind": "ServiceList", "items": [
            { "metadata": { "name": "a" }, "spec": { "clusterIP": "10.96.0.1" } }
        ] }"#;
        let manifests = parse(json, Syntax::Json, "this-node").unwrap();
        assert_eq!(describe(manifests), ["1 Service default/a"]);
    }

    #[test]
    fn only_the_kinds_that_a_service_proxy_reads_count_and_of_nodes_only_this_one() {
        let text = "\
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}
---
{apiVersion: v1, kind: Node, metadata: {name: other}}
---
{apiVersion: v1, kind: Node, metadata: {name: this-node}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: None}}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: more}, spec: {cidrs: [10.97.0.0/24]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web}}
";
        assert_eq!(yaml(text), ["5 Node /this-node", "9 ServiceCIDR /more"]);
    }

    #[test]
    fn an_object_that_says_nonsense_is_named() {
        let text = "\
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: nonsense}}
---
{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {ports: [{port: many}]}}
";
        assert_eq!(
            yaml(text),
            [
                "1 Service default/web: spec.clusterIP: \"nonsense\" is not an IP address",
                "3 Service default/db: invalid type: string \"many\", expected i32",
            ]
        );
    }

    #[test]
    fn a_file_that_does_not_parse_is_an_error_with_its_line() {
        let yaml = parse("a: 1\nb: [\n", Syntax::Yaml, "this-node").unwrap_err();
        assert_eq!(yaml.to_string(), "unclosed bracket '[' at line 2, column 4");
        let json = parse("{\n  \"a\": }", Syntax::Json, "this-node").unwrap_err();
        assert_eq!(json.to_string(), "expected value at line 2 column 8");
    }

    #[test]
    fn a_file_of_thousands_of_documents_is_read() {
        let document = "---\n{apiVersion: v1, kind: Service, metadata: {name: N}, \
                        spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}\n";
        let text: String = (0..3_000)
            .map(|index| document.replace('N', &format!("s{index}")))
            .collect();
        assert_eq!(parse(&text, Syntax::Yaml, "this-node").unwrap().len(), 3_000);
    }
}
