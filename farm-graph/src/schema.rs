//! The types of a graph.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::GraphError;

/// A type of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeType {
    /// Number of the type, unique among the types of nodes.
    pub id: u32,
    /// Name, for people.
    pub name: String,
    /// Number of types of associations for which a new node has room; with more, its lists move to objects of their
    /// own. At least 1.
    #[serde(default = "two")]
    pub lists: u8,
}

fn two() -> u8 {
    2
}

/// A type of associations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssocType {
    /// Number of the type, unique among the types of associations.
    pub id: u32,
    /// Name, for people.
    pub name: String,
    /// The type of the inverse association: an association from a to b has an inverse association from b to a, which
    /// the same transaction writes. May be the type itself.
    #[serde(default)]
    pub inverse: Option<u32>,
    /// Whether a node has at most one visible association of the type.
    #[serde(default)]
    pub unique: bool,
    /// Whether associations can also be added to nodes that were deleted, or only [reserved](crate::tx::obj_reserve). The
    /// same for the type and its inverse.
    #[serde(default)]
    pub dangling: bool,
}

/// The types of a graph. Operations on other types are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Types")]
pub struct Schema {
    nodes: Vec<NodeType>,
    assocs: Vec<AssocType>,
}

/// The types of a schema that was not checked yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Types {
    nodes: Vec<NodeType>,
    #[serde(default)]
    assocs: Vec<AssocType>,
}

impl TryFrom<Types> for Schema {
    type Error = GraphError;

    fn try_from(types: Types) -> Result<Self, GraphError> {
        Self::new(types.nodes, types.assocs)
    }
}

impl Schema {
    /// Reads a schema from a file in TOML, as [`Schema::parse`].
    ///
    /// # Errors
    /// [`GraphError::Schema`], also if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, GraphError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|why| GraphError::Schema(format!("cannot read {name}: {why}")))?;
        Self::parse(&name, &text)
    }

    /// Reads a schema from a text in TOML. `name` is its name in errors.
    ///
    /// # Errors
    /// [`GraphError::Schema`] if the text is not TOML, has unknown keys, or its types contradict each other ([`Schema::new`]).
    ///
    /// ```
    /// let schema = farm_graph::Schema::parse(
    ///     "social.toml",
    ///     r#"
    ///         nodes = [{ id = 1, name = "user", lists = 3 }, { id = 2, name = "photo" }]
    ///         assocs = [
    ///             { id = 10, name = "friend", inverse = 10 },
    ///             { id = 11, name = "likes", inverse = 12 },
    ///             { id = 12, name = "liked by", inverse = 11 },
    ///             { id = 13, name = "profile photo", unique = true },
    ///         ]
    ///     "#,
    /// )?;
    /// assert_eq!(schema.assoc(11)?.inverse, Some(12));
    /// # Ok::<(), farm_graph::GraphError>(())
    /// ```
    pub fn parse(name: &str, text: &str) -> Result<Self, GraphError> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            // An error without a place concerns all types together.
            let line = before.filter(|before| !before.trim().is_empty());
            let line = line.map_or_else(String::new, |before| {
                format!(":{}", 1 + before.matches('\n').count())
            });
            GraphError::Schema(format!("{name}{line}: {}", error.message()))
        })
    }

    /// Returns the schema as a text that [`Schema::parse`] reads.
    ///
    /// # Panics
    /// Never: every schema can be written in TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a schema has only lists, names and numbers")
    }

    /// Creates a schema.
    ///
    /// # Errors
    /// [`GraphError::Schema`] if two types have the same number, if a type has no room for lists, if the inverse of an
    /// inverse type is not the type itself, or if only one of both is dangling.
    pub fn new(mut nodes: Vec<NodeType>, mut assocs: Vec<AssocType>) -> Result<Self, GraphError> {
        nodes.sort_by_key(|it| it.id);
        assocs.sort_by_key(|it| it.id);
        let schema = Self { nodes, assocs };
        let wrong = |why: String| Err(GraphError::Schema(why));
        if let Some(twice) = schema.nodes.windows(2).find(|two| two[0].id == two[1].id) {
            let (first, id) = (&twice[0].name, twice[0].id);
            let second = &twice[1].name;
            return wrong(format!(
                "the node types {first:?} and {second:?} have the same number, {id}"
            ));
        }
        if let Some(twice) = schema.assocs.windows(2).find(|two| two[0].id == two[1].id) {
            let (first, id) = (&twice[0].name, twice[0].id);
            let second = &twice[1].name;
            return wrong(format!(
                "the association types {first:?} and {second:?} have the same number, {id}"
            ));
        }
        if let Some(none) = schema.nodes.iter().find(|it| it.lists == 0) {
            return wrong(format!(
                "the node type {:?} has lists = 0; it must be at least 1",
                none.name
            ));
        }
        for assoc in &schema.assocs {
            let Some(inverse) = assoc.inverse else {
                continue;
            };
            match schema.assoc(inverse) {
                Ok(back) if back.inverse == Some(assoc.id) && back.dangling == assoc.dangling => {}
                Ok(back) if back.inverse == Some(assoc.id) => {
                    let (name, other) = (&assoc.name, &back.name);
                    return wrong(format!(
                        "the association types {name:?} and {other:?} are inverse to each other, so that both or none \
                         must be dangling"
                    ));
                }
                Ok(back) => {
                    let (name, other) = (&assoc.name, &back.name);
                    return wrong(format!(
                        "the association type {name:?} has the inverse {other:?}, so that {other:?} must have the \
                         inverse {name:?}"
                    ));
                }
                Err(_) => {
                    return wrong(format!(
                        "the association type {:?} has the inverse {inverse}, which is not declared",
                        assoc.name
                    ));
                }
            }
        }
        Ok(schema)
    }

    /// Returns a type of nodes.
    ///
    /// # Errors
    /// [`GraphError::NodeType`].
    pub fn node(&self, id: u32) -> Result<&NodeType, GraphError> {
        let found = self.nodes.binary_search_by_key(&id, |it| it.id);
        found
            .map(|found| &self.nodes[found])
            .map_err(|_| GraphError::NodeType(id))
    }

    /// Returns a type of associations.
    ///
    /// # Errors
    /// [`GraphError::AssocType`].
    pub fn assoc(&self, id: u32) -> Result<&AssocType, GraphError> {
        let found = self.assocs.binary_search_by_key(&id, |it| it.id);
        found
            .map(|found| &self.assocs[found])
            .map_err(|_| GraphError::AssocType(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assoc(id: u32, inverse: Option<u32>) -> AssocType {
        AssocType {
            id,
            name: format!("a{id}"),
            inverse,
            ..AssocType::default()
        }
    }

    fn node(id: u32, lists: u8) -> NodeType {
        NodeType {
            id,
            name: format!("n{id}"),
            lists,
        }
    }

    #[test]
    fn types_are_found_by_number() {
        let assocs = vec![assoc(7, Some(3)), assoc(3, Some(7)), assoc(5, Some(5))];
        let schema = Schema::new(vec![node(9, 1), node(2, 2)], assocs).unwrap();
        assert_eq!(schema.node(2).unwrap().name, "n2");
        assert_eq!(schema.assoc(7).unwrap().inverse, Some(3));
        assert!(matches!(schema.node(3), Err(GraphError::NodeType(3))));
        assert!(matches!(schema.assoc(2), Err(GraphError::AssocType(2))));
    }

    #[test]
    fn a_schema_that_is_read_is_checked() {
        let read = |text: &str| serde_json::from_str::<Schema>(text);
        let two = r#"{"nodes": [{"id": 2, "name": "b"}, {"id": 1, "name": "a", "lists": 9}]}"#;
        let schema = read(two).unwrap();
        assert_eq!(
            (schema.node(1).unwrap().lists, schema.node(2).unwrap().lists),
            (9, 2)
        );
        let twice = r#"{"nodes": [{"id": 1, "name": "b"}, {"id": 1, "name": "a"}]}"#;
        assert!(read(twice).unwrap_err().to_string().contains("same number"));
        assert!(read(r#"{"nodes": [], "edges": []}"#).is_err());
    }

    #[test]
    fn a_schema_in_a_file_is_checked_and_errors_name_the_line() {
        let why = |text: &str| Schema::parse("x.toml", text).unwrap_err().to_string();
        let first = "nodes = [{ id = 1, name = \"a\" }]\n";
        assert!(Schema::parse("x.toml", first).is_ok());
        let unknown = why(&format!(
            "{first}\nassocs = [{{ id = 1, name = \"b\", uniqe = true }}]"
        ));
        assert!(
            unknown.contains("x.toml:3: unknown field `uniqe`"),
            "{unknown}"
        );
        let negative = why("# types\nnodes = [{ id = -1, name = \"a\" }]");
        assert!(negative.contains("x.toml:2: "), "{negative}");
        let twice = why("nodes = [{ id = 1, name = \"a\" }, { id = 1, name = \"b\" }]");
        assert!(
            twice.contains("x.toml: ") && twice.contains("same number, 1"),
            "{twice}"
        );
        assert!(
            why("").contains("x.toml: missing field `nodes`"),
            "{}",
            why("")
        );
        assert!(why("\u{0}\u{1}").contains("x.toml"));
        let absent = Schema::load(Path::new("/absent/x.toml"))
            .unwrap_err()
            .to_string();
        assert!(absent.contains("cannot read /absent/x.toml"), "{absent}");
    }

    #[test]
    fn contradictory_schemas_are_refused() {
        let why = |nodes, assocs| Schema::new(nodes, assocs).unwrap_err().to_string();
        let twice = why(vec![node(1, 1), node(1, 2)], vec![]);
        assert!(
            twice.contains(r#"the node types "n1" and "n1" have the same number, 1"#),
            "{twice}"
        );
        let twice = why(vec![], vec![assoc(1, None), assoc(1, None)]);
        assert!(twice.contains("association types"), "{twice}");
        let none = why(vec![node(1, 0)], vec![]);
        assert!(none.contains("at least 1"), "{none}");
        let one_way = why(vec![], vec![assoc(1, Some(2)), assoc(2, None)]);
        assert!(
            one_way.contains(r#""a2" must have the inverse "a1""#),
            "{one_way}"
        );
        let dangling = AssocType {
            dangling: true,
            ..assoc(2, Some(1))
        };
        let dangling = why(vec![], vec![assoc(1, Some(2)), dangling]);
        assert!(dangling.contains("both or none"), "{dangling}");
        let absent = why(vec![], vec![assoc(1, Some(2))]);
        assert!(
            absent.contains("the inverse 2, which is not declared"),
            "{absent}"
        );
    }
}
