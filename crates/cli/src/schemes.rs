//! The schemes of metadata URLs: one table for the parser and for the help text. The tests in `documented`
//! compare README.md with it.

use crate::network::Server;

/// The kind of engine that stores a volume's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineKind {
    Sqlite,
    /// The memory of a mount.
    Memory,
    Server(Server),
}

/// A scheme of metadata URLs.
#[derive(Debug)]
pub(crate) struct Scheme {
    pub(crate) name: &'static str,
    /// Other schemes with the same meaning.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) example: &'static str,
    about: &'static str,
    pub(crate) engine: EngineKind,
}

/// All schemes. The first scheme of an engine is the engine's name.
pub(crate) const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "sqlite",
        aliases: &["sqlite3"],
        example: "sqlite:///var/lib/limen/home.db",
        about: "SQLite, a database file on this machine",
        engine: EngineKind::Sqlite,
    },
    Scheme {
        name: "redis",
        aliases: &["valkey"],
        example: "redis://db.example/0",
        about: "Redis or Valkey; the path is the database number",
        engine: EngineKind::Server(Server::Redis),
    },
    Scheme {
        name: "rediss",
        aliases: &["valkeys"],
        example: "rediss://db.example/0",
        about: "Redis or Valkey with TLS",
        engine: EngineKind::Server(Server::Redis),
    },
    Scheme {
        name: "redis+unix",
        aliases: &["valkey+unix"],
        example: "redis+unix:///run/redis/redis.sock",
        about: "Redis or Valkey through a Unix socket",
        engine: EngineKind::Server(Server::Redis),
    },
    Scheme {
        name: "postgres",
        aliases: &["postgresql"],
        example: "postgres://limen@db.example/limen",
        about: "PostgreSQL; USER@HOST/DATABASE",
        engine: EngineKind::Server(Server::Postgres),
    },
    Scheme {
        name: "mysql",
        aliases: &["mariadb"],
        example: "mysql://limen@db.example/limen",
        about: "MariaDB or MySQL; USER@HOST/DATABASE",
        engine: EngineKind::Server(Server::Mysql),
    },
    Scheme {
        name: "etcd",
        aliases: &[],
        example: "etcd://e1.example,e2.example",
        about: "etcd, the members of a cluster",
        engine: EngineKind::Server(Server::Etcd),
    },
    Scheme {
        name: "etcds",
        aliases: &[],
        example: "etcds://e1.example,e2.example",
        about: "etcd with TLS",
        engine: EngineKind::Server(Server::Etcd),
    },
    Scheme {
        name: "tikv",
        aliases: &[],
        example: "tikv://pd1.example,pd2.example/home",
        about: "TiKV, its placement drivers and a prefix",
        engine: EngineKind::Server(Server::Tikv),
    },
    Scheme {
        name: "mem",
        aliases: &[],
        example: "mem://",
        about: "the memory of the mount, lost when it is unmounted: for trials",
        engine: EngineKind::Memory,
    },
];

impl Scheme {
    /// The row for the scheme of a URL, which may be an alias.
    pub(crate) fn find(scheme: &str) -> Option<&'static Scheme> {
        SCHEMES.iter().find(|known| known.name == scheme || known.aliases.contains(&scheme))
    }

    /// All names of the scheme.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.aliases.iter().copied())
    }

    /// Whether this build can open such URLs.
    pub(crate) fn is_built(&self) -> bool {
        self.engine != EngineKind::Server(Server::Tikv) || cfg!(feature = "tikv")
    }
}

impl EngineKind {
    pub(crate) fn name(self) -> &'static str {
        SCHEMES.iter().find(|scheme| scheme.engine == self).map_or("", |scheme| scheme.name)
    }
}

/// The names of the engines in this build.
pub(crate) fn engines() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        SCHEMES.iter().filter(|scheme| scheme.is_built()).map(|scheme| scheme.engine.name()).collect();
    names.dedup();
    names
}

/// One line for each scheme of this build.
pub(crate) fn help() -> String {
    let line = |scheme: &Scheme| {
        let aliases: Vec<String> = scheme.aliases.iter().map(|alias| format!("{alias}://")).collect();
        let also = if aliases.is_empty() { String::new() } else { format!("; also {}", aliases.join(", ")) };
        format!("  {:<36}{}{also}\n", scheme.example, scheme.about)
    };
    SCHEMES.iter().filter(|scheme| scheme.is_built()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_listed_once() {
        let mut names = vec!["sqlite", "redis", "postgres", "mysql", "etcd"];
        names.extend(cfg!(feature = "tikv").then_some("tikv"));
        names.push("mem");
        assert_eq!(engines(), names);
    }

    #[test]
    fn schemes_and_aliases_are_distinct() {
        let mut names: Vec<&str> = SCHEMES.iter().flat_map(Scheme::names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(
            names
                .iter()
                .all(|name| Scheme::find(name).is_some_and(|scheme| scheme.names().any(|n| n == *name)))
        );
    }
}
