//! What the guest is to do: a file in its initramfs, a line a step.

use anyhow::{Result, bail};

/// Where it is in the guest.
pub const PATH: &str = "/vm/plan";

/// What the guest is to do. Paths are those of the guest.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Files of modules, in the order in which they are loaded.
    pub modules: Vec<String>,
    /// The environment of all programs.
    pub environment: Vec<(String, String)>,
    /// The programs, one after the other.
    pub programs: Vec<Program>,
}

/// A program that is run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it is called in the output.
    pub title: String,
    /// Its file.
    pub path: String,
    /// Its arguments.
    pub args: Vec<String>,
}

impl Plan {
    /// As it is written to the file. Fails for texts with line ends, which it cannot hold.
    pub fn text(&self) -> Result<String> {
        let mut lines = Vec::new();
        lines.extend(self.modules.iter().map(|file| format!("module {file}")));
        lines.extend(
            self.environment
                .iter()
                .map(|(name, value)| format!("env {name}={value}")),
        );
        for program in &self.programs {
            lines.push(format!("title {}", program.title));
            lines.push(format!("run {}", program.path));
            lines.extend(program.args.iter().map(|arg| format!("arg {arg}")));
        }
        if let Some(line) = lines.iter().find(|line| line.contains('\n')) {
            bail!("an argument for the guest may hold no line end: {line:?}");
        }
        Ok(lines.join("\n"))
    }

    /// Reads it back.
    pub fn parse(text: &str) -> Result<Self> {
        let mut plan = Self::default();
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let rest = rest.to_owned();
            match (word, plan.programs.last_mut()) {
                ("module", _) => plan.modules.push(rest),
                ("env", _) => match rest.split_once('=') {
                    Some((name, value)) => plan.environment.push((name.to_owned(), value.to_owned())),
                    None => bail!("{line:?} sets no variable"),
                },
                ("title", _) => plan.programs.push(Program {
                    title: rest,
                    ..Program::default()
                }),
                ("run", Some(program)) => program.path = rest,
                ("arg", Some(program)) => program.args.push(rest),
                _ => bail!("{line:?} is no step of a plan"),
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let program = |title: &str, args: &[&str]| Program {
            title: title.into(),
            path: format!("/bin/{title}"),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        };
        Plan {
            modules: vec!["/lib/a.ko".into(), "/lib/b.ko".into()],
            environment: vec![("A".into(), "1=2".into()), ("B".into(), String::new())],
            programs: vec![program("one", &["--x", "y z", ""]), program("two", &[])],
        }
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        assert_eq!(Plan::parse(&plan().text().unwrap()).unwrap(), plan());
    }

    #[test]
    fn what_it_cannot_hold_is_refused() {
        let mut plan = plan();
        plan.programs[0].args.push("a\nb".into());
        assert!(plan.text().unwrap_err().to_string().contains("line end"));
        assert!(Plan::parse("arg x").is_err());
        assert!(Plan::parse("dance").is_err());
    }
}
