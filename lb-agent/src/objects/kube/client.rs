//! Which API server, and as whom.

use std::{
    env,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use kube::{
    Client, Config,
    config::{ExecInteractiveMode, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use super::{ServerUrl, connection::describe, own_service};

/// A server sends each watch a bookmark about once a minute, so that a connection that is silent
/// for longer than this is dead, whatever TCP thinks of it.
const SILENCE: Duration = Duration::from_secs(150);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// What says which API server.
#[derive(Clone, Debug, Default)]
pub struct ApiServerOptions {
    /// A kubeconfig. Without one: the service account of the pod, or what kubectl would read.
    pub kubeconfig: Option<PathBuf>,
    /// A URL that takes the place of the one found there.
    pub url: Option<ServerUrl>,
}

/// An API server to talk to.
#[derive(Clone)]
pub struct ApiServer {
    client: Client,
    url: String,
    address: Option<IpAddr>,
}

impl ApiServer {
    /// Reads the configuration. Does not talk to the server yet.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense, or the way to the server would lead through this agent ([`Loop`]).
    ///
    /// [`Loop`]: super::Loop
    pub async fn configure(options: &ApiServerOptions) -> anyhow::Result<Self> {
        let mut config = config(options).await?;
        if let Some(url) = &options.url {
            config.cluster_url = url.secret().parse().context("what --apiserver says is not a URL")?;
        }
        let (scheme, host) = (config.cluster_url.scheme_str(), config.cluster_url.host());
        let (Some("http" | "https"), Some(host)) = (scheme, host) else {
            // Without the URL, of which so little is known that its password cannot be told.
            bail!("the URL of the API server lacks http:// or https://");
        };
        own_service::check(host)?;
        let address = own_service::address(host);
        // No user and no password, as they may be in a URL.
        let port = config
            .cluster_url
            .port()
            .map(|port| format!(":{port}"))
            .unwrap_or_default();
        let url = format!("{}://{host}{port}", scheme.unwrap_or_default());

        if scheme == Some("http") {
            // No certificate is looked at. Without this, those of the system are read, and it is an error if it has none.
            config.root_cert.get_or_insert_default();
        }
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(SILENCE);
        config.reset_reader_on_write = true;
        if let Some(plugin) = &mut config.auth_info.exec {
            // Nobody sits here to be asked, and only then does kube keep the plugin's standard error
            // from ours, where what it prints would be logged.
            plugin.interactive_mode = Some(ExecInteractiveMode::Never);
        }
        let is_systems_to_trust = config.root_cert.is_none();
        let client = Client::try_from(config)
            .map_err(|error| match error {
                kube::Error::RustlsTls(_) if is_systems_to_trust => anyhow!(
                    "{}; name a `certificate-authority` in the kubeconfig, or install those of the system (the package \
                     ca-certificates)",
                    describe(&error)
                ),
                error => anyhow!(describe(&error)),
            })
            .with_context(|| format!("the API server {url} cannot be used with this configuration"))?;
        Ok(Self { client, url, address })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Its address, where the URL has one and no name.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Its URL, without anything secret.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

async fn config(options: &ApiServerOptions) -> anyhow::Result<Config> {
    if let Some(path) = &options.kubeconfig {
        let what = format!("kubeconfig {}", path.display());
        return from_kubeconfig(Kubeconfig::read_from(path), &what).await;
    }
    if env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(SERVICE_ACCOUNT_TOKEN).exists() {
        return Config::incluster().context("the pod's service account");
    }
    if let Some(paths) = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        let what = format!("kubeconfig {} (from KUBECONFIG)", Path::new(&paths).display());
        return from_kubeconfig(Kubeconfig::read(), &what).await;
    }
    let default = env::home_dir().map(|home| home.join(".kube/config"));
    if let Some(path) = default.filter(|path| path.exists()) {
        let what = format!("kubeconfig {}", path.display());
        return from_kubeconfig(Kubeconfig::read_from(&path), &what).await;
    }
    match &options.url {
        Some(url) => {
            let url = url.secret().parse().context("what --apiserver says is not a URL")?;
            Ok(Config::new(url))
        }
        None => bail!(
            "no API server: give --kubeconfig FILE, --apiserver URL or --source DIR, or run as a \
             pod with a service account"
        ),
    }
}

async fn from_kubeconfig(kubeconfig: Result<Kubeconfig, KubeconfigError>, what: &str) -> anyhow::Result<Config> {
    let kubeconfig = kubeconfig
        .map_err(|error| without_secrets(&error))
        .context(what.to_owned())?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| without_secrets(&error))
        .context(what.to_owned())
}

/// What is wrong with a kubeconfig. An error of the parser may quote the file, tokens included, so
/// that only its place is told.
fn without_secrets(error: &KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::Parse(error) => match error.location() {
            Some(location) => anyhow::anyhow!(
                "line {}, column {}: this is not what a kubeconfig has there",
                location.line(),
                location.column()
            ),
            None => anyhow::anyhow!("this is not a kubeconfig"),
        },
        KubeconfigError::ReadConfig(error, _) => anyhow::anyhow!("{error}"),
        other => anyhow::anyhow!("{other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn configure(kubeconfig: &str, url: Option<&str>) -> anyhow::Result<ApiServer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        fs::write(&path, kubeconfig).unwrap();
        let options = ApiServerOptions {
            kubeconfig: Some(path),
            url: url.map(Into::into),
        };
        ApiServer::configure(&options).await
    }

    fn kubeconfig(server: &str) -> String {
        format!(
            r#"{{
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{{ "name": "c", "cluster": {{ "server": "{server}" }} }}],
                "users": [{{ "name": "u", "user": {{ "token": "s3cret" }} }}],
                "contexts": [{{ "name": "c", "context": {{ "cluster": "c", "user": "u" }} }}]
            }}"#
        )
    }

    #[tokio::test]
    async fn the_url_is_the_kubeconfigs_or_the_one_given() {
        let server = configure(&kubeconfig("http://10.0.0.1:6443"), None).await.unwrap();
        assert_eq!(server.url(), "http://10.0.0.1:6443");
        let given = Some("http://127.0.0.1:8001");
        let server = configure(&kubeconfig("http://10.0.0.1:6443"), given).await.unwrap();
        assert_eq!(server.url(), "http://127.0.0.1:8001");
    }

    #[tokio::test]
    async fn the_url_that_is_shown_holds_no_password() {
        let server = configure(&kubeconfig("http://user:s3cret@10.0.0.1:6443/x"), None).await;
        assert_eq!(server.unwrap().url(), "http://10.0.0.1:6443");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_does_not_parse_is_an_error_with_its_place_and_without_its_secrets() {
        let text = "apiVersion: v1\nusers:\n- name: u\n  user: s3cret\n";
        let error = configure(text, None).await.err().map(|error| format!("{error:#}"));
        let error = error.unwrap();
        assert!(error.contains("/kubeconfig: line 4"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }

    /// One whose credentials are made by a shell script, with a secret in the script's environment.
    fn kubeconfig_with_plugin(script: &str, mode: &str) -> String {
        let script = serde_json::Value::from(script);
        format!(
            r#"{{
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{{ "name": "c", "cluster": {{ "server": "http://10.0.0.1:6443" }} }}],
                "users": [{{ "name": "u", "user": {{ "exec": {{
                    "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "{mode}",
                    "command": "sh", "args": ["-c", {script}, "s3cret-argument"],
                    "env": [{{ "name": "PASSWORD", "value": "s3cret-variable" }}]
                }} }} }}],
                "contexts": [{{ "name": "c", "context": {{ "cluster": "c", "user": "u" }} }}]
            }}"#
        )
    }

    #[tokio::test]
    async fn a_credential_plugin_that_fails_is_told_with_its_status_and_nothing_of_what_it_knows() {
        let fails = "echo s3cret-token; echo s3cret-token >&2; exit 3";
        let table = [
            (fails, "the credential plugin of the kubeconfig failed, exit status: 3"),
            (
                "echo s3cret-token",
                "the credential plugin of the kubeconfig answers with something that is no credential",
            ),
            (
                "echo '{status: {token: s3cret-token, expirationTimestamp: s3cret-time}}'",
                "the credential plugin of the kubeconfig answers with something that is no credential",
            ),
        ];
        for (script, expected) in table {
            let error = configure(&kubeconfig_with_plugin(script, "Never"), None).await;
            let error = error.err().unwrap();
            let what = "the API server http://10.0.0.1:6443 cannot be used with this configuration";
            assert_eq!(format!("{error:#}"), format!("{what}: no credentials: {expected}"));
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_credential_plugin_that_fails_later_is_told_in_the_same_way() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            r#"if mkdir {0}/once; then
                echo '{{"status": {{"token": "s3cret-token", "expirationTimestamp": "2020-01-01T00:00:00Z"}}}}'
            else
                echo s3cret-token; echo s3cret-token >&2; exit 5
            fi"#,
            folder.path().display()
        );
        let server = configure(&kubeconfig_with_plugin(&script, "IfAvailable"), None).await;
        let error = server.unwrap().client().apiserver_version().await.unwrap_err();
        assert_eq!(
            describe(&error),
            "no credentials: the credential plugin of the kubeconfig failed, exit status: 5"
        );
    }

    #[tokio::test]
    async fn a_credential_plugin_hears_that_there_is_nobody_to_ask() {
        let script = r#"case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 4 ;; esac
            echo '{"status": {"token": "t"}}'"#;
        for mode in ["IfAvailable", "Always", "Never"] {
            assert!(
                configure(&kubeconfig_with_plugin(script, mode), None).await.is_ok(),
                "{mode}"
            );
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_without_context_or_file_says_so() {
        let error = configure("apiVersion: v1\n", None).await.err().unwrap();
        assert!(format!("{error:#}").contains("current context"), "{error:#}");

        let options = ApiServerOptions {
            kubeconfig: Some("/nowhere/kubeconfig".into()),
            url: None,
        };
        let error = ApiServer::configure(&options).await.err().unwrap();
        assert_eq!(
            format!("{error:#}"),
            "kubeconfig /nowhere/kubeconfig: No such file or directory (os error 2)"
        );
    }
}
