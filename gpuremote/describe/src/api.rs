//! Descriptions as values.

/// An API.
#[derive(Debug)]
pub struct Api {
    /// Its name.
    pub name: String,
    /// Its number on the wire.
    pub number: u8,
    /// Statuses that stubs return themselves.
    pub statuses: Statuses,
    /// Its kinds of handles, with the first value that is a handle; smaller ones mean something in the API itself.
    pub handles: Vec<(String, u64)>,
    /// Those of its kinds of handles that are objects of the front end.
    pub objects: Vec<Object>,
    /// APIs whose handles it uses.
    pub others: Vec<Api>,
    /// Names of functions in the order of the table that a loader knows them by; empty when there is none.
    pub order: Vec<String>,
    /// Its functions. Their places are their numbers on the wire.
    pub functions: Vec<Function>,
}

impl Api {
    /// The kind of objects with this name. None where there is none, or where its handles are plain numbers.
    pub fn object(&self, kind: &str) -> Option<&Object> {
        self.objects.iter().find(|object| object.kind == kind)
    }

    /// The order of the loader's table as Rust code: a constant `ORDER`, or nothing when there is no table.
    pub(crate) fn order_constant(&self) -> String {
        match self.order.len() {
            0 => String::new(),
            count => format!(
                "/// Names of functions in the order of the loader's table.\npub const ORDER: [&str; {count}] = {:?};\n",
                self.order
            ),
        }
    }
}

/// Statuses that stubs return themselves.
#[derive(Debug, Default)]
pub struct Statuses {
    /// Success.
    pub ok: i32,
    /// The server is lost.
    pub lost: i32,
    /// An argument is wrong.
    pub invalid: i32,
    /// A handle is of no object.
    pub handle: i32,
    /// The function is not supported.
    pub unsupported: i32,
    /// The server has no library for the API.
    pub missing: i32,
    /// An earlier call of another API has failed, for which its caller did not wait.
    pub failed: i32,
}

/// A function.
#[derive(Debug)]
pub struct Function {
    /// Its name, which is the symbol.
    pub name: String,
    /// Its arguments, in order.
    pub arguments: Vec<Argument>,
    /// The kind of the new object that it returns; none where it returns a status.
    pub returns: Option<String>,
    /// How it is called.
    pub way: Way,
    /// Whether others may begin while it runs.
    pub blocks: bool,
    /// Whether the server's part is written by hand.
    pub by_hand_on_server: bool,
    /// Whether what programs call is written by hand, around the stub.
    pub wrapped: bool,
}

impl Function {
    /// A function of which nothing is known but that it is not supported.
    pub(crate) fn refused(name: &str) -> Self {
        Function {
            name: name.to_owned(),
            arguments: Vec::new(),
            returns: None,
            way: Way::Refused,
            blocks: false,
            by_hand_on_server: false,
            wrapped: false,
        }
    }

    /// The name of the first argument that is an object, which new objects hold.
    pub(crate) fn first_object(&self) -> Option<&str> {
        let is_object = |argument: &&Argument| matches!(argument.r#type, Type::Object(_));
        self.arguments.iter().find(is_object).map(|argument| argument.name.as_str())
    }
}

/// An argument.
#[derive(Debug)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Its type.
    pub r#type: Type,
}

/// How a function is called: see the table of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Way {
    Sync,
    Async,
    Cached,
    Local,
    Manual,
    Refused,
    Retain,
    Release,
}

/// The type of an argument: see the tables of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    Scalar(String),
    In(String, Length),
    Out(String, Length),
    Text,
    Info,
    Null,
    Scalars(Scalars),
    Handle(String),
    New(String),
    Found(String),
    Free(String),
    InHandles(String, Length),
    Foreign(ForeignHandle),
    Object(Object),
    Maybe(Object),
    Want(String),
    Objects(Objects),
}

/// How many values an array has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Length {
    /// Always so many.
    Fixed(usize),
    /// So many times as many as another argument says.
    Argument(usize, String),
}

/// Numbers that a library reads or writes by a pointer: in host memory, or on the GPU, as the mode of a handle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalars {
    /// Whether the library reads them.
    pub read: bool,
    /// Whether the library writes them.
    pub written: bool,
    /// How many bytes they take: a number, or a call of a function in the front end's `by_hand`.
    pub bytes: String,
    /// The handle whose mode says where they are. None: always in host memory.
    pub handle: Option<String>,
}

/// A kind of handles of another API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignHandle {
    /// The other API's name.
    pub api: String,
    /// The handle's name there.
    pub name: String,
    /// Its place among the handles of that API.
    pub kind: usize,
    /// The first value that is a handle.
    pub first: u64,
}

/// A kind of objects of the front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name.
    pub kind: String,
    /// The status for a pointer to none of this kind.
    pub wrong: i32,
}

/// Objects in an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// Their kind.
    pub kind: String,
    /// How many there are.
    pub length: Length,
    /// The status where one is none of this kind.
    pub wrong: i32,
    /// Whether there must be any.
    pub required: bool,
}
