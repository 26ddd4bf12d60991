//! A certificate authority for one control plane, and what it signs: the server, and all who talk to it.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// A user as the API server knows them: a certificate's common name and organisation are its user name and group.
pub(super) struct User {
    /// What the files are called.
    pub(super) file: &'static str,
    name: &'static str,
    group: &'static str,
}

/// May do everything: the group is bound by the API server itself.
pub(super) const ADMIN: User = User {
    file: "admin",
    name: "admin",
    group: "system:masters",
};

/// The name that the token of the ServiceAccount in `deploy/rbac.yaml` would carry, so that the shipped ClusterRoleBinding, and
/// nothing made for tests, decides what the agent may do.
pub(super) const AGENT: User = User {
    file: "lb-agent",
    name: "system:serviceaccount:kube-system:lb-agent",
    group: "system:serviceaccounts",
};

/// The name that the API server itself gives a proxy's rights (`system:node-proxier`).
pub(super) const KUBE_PROXY: User = User {
    file: "kube-proxy",
    name: "system:kube-proxy",
    group: "system:authenticated",
};

/// The controllers: the name that the API server itself gives their rights.
pub(super) const CONTROLLERS: User = User {
    file: "kube-controller-manager",
    name: "system:kube-controller-manager",
    group: "system:authenticated",
};

/// The scheduler.
pub(super) const SCHEDULER: User = User {
    file: "kube-scheduler",
    name: "system:kube-scheduler",
    group: "system:authenticated",
};

/// A kubelet, who may do what is its node's by the name of the node.
pub(super) const KUBELET: User = User {
    file: "kubelet",
    name: "system:node:node-1",
    group: "system:nodes",
};

/// All that there are.
const USERS: [&User; 6] = [&ADMIN, &AGENT, &KUBE_PROXY, &CONTROLLERS, &SCHEDULER, &KUBELET];

/// The certificates and keys of one control plane, as files.
#[derive(Debug)]
pub(super) struct Certs {
    dir: PathBuf,
}

impl Certs {
    /// Makes all of them anew in a folder. `address` is where the API server listens.
    pub(super) fn make(dir: &Path, address: IpAddr) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let certs = Self { dir: dir.to_owned() };

        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params
            .distinguished_name
            .push(DnType::CommonName, "lb-agent test control plane");
        let key = KeyPair::generate()?;
        let ca = params.self_signed(&key)?;
        write_private(&certs.ca(), &ca.pem())?;
        let issuer = Issuer::new(params, key);

        let names = [
            address.to_string(),
            "127.0.0.1".into(),
            "::1".into(),
            // The first addresses of the service ranges are the API server's own service.
            "10.96.0.1".into(),
            "fd00:96::1".into(),
            "localhost".into(),
            "kubernetes".into(),
            "kubernetes.default".into(),
            "kubernetes.default.svc".into(),
        ];
        let mut params = CertificateParams::new(names)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        certs.sign("apiserver", params, &issuer)?;

        for user in USERS {
            let mut params = CertificateParams::default();
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            params.distinguished_name.push(DnType::CommonName, user.name);
            params.distinguished_name.push(DnType::OrganizationName, user.group);
            certs.sign(user.file, params, &issuer)?;
        }

        // Of service account tokens. The API server insists on a key even where nobody asks for one.
        let tokens = KeyPair::generate()?;
        write_private(&certs.key("tokens"), &tokens.serialize_pem())?;
        write_private(&certs.tokens_public(), &tokens.public_key_pem())?;
        Ok(certs)
    }

    fn sign(&self, file: &str, mut params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<()> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let cert = params
            .signed_by(&key, issuer)
            .with_context(|| format!("signing the certificate of {file}"))?;
        write_private(&self.cert(file), &cert.pem())?;
        write_private(&self.key(file), &key.serialize_pem())
    }

    pub(super) fn ca(&self) -> PathBuf {
        self.cert("ca")
    }

    pub(super) fn cert(&self, file: &str) -> PathBuf {
        self.dir.join(format!("{file}.crt"))
    }

    pub(super) fn key(&self, file: &str) -> PathBuf {
        self.dir.join(format!("{file}.key"))
    }

    pub(super) fn tokens_public(&self) -> PathBuf {
        self.dir.join("tokens.pub")
    }

    /// Writes a kubeconfig of a user for a server. It names the files here, so it works as long as they are there.
    pub(super) fn kubeconfig(&self, user: &User, url: &str, to: &Path) -> Result<()> {
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "lb-test",
                "cluster": { "server": url, "certificate-authority": self.ca() },
            }],
            "users": [{
                "name": user.file,
                "user": { "client-certificate": self.cert(user.file), "client-key": self.key(user.file) },
            }],
            "contexts": [{ "name": "lb-test", "context": { "cluster": "lb-test", "user": user.file } }],
            "current-context": "lb-test",
        });
        // JSON is YAML, and quotes whatever a path may contain.
        write_private(to, &format!("{config:#}\n"))
    }
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    // A kubeconfig or key of an earlier start may still be read by a client: replace, never truncate in place.
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .with_context(|| format!("creating {}", new.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("writing {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("writing {}", path.display()))
}
