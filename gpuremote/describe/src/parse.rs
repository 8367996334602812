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
    /// APIs whose handles it uses.
    pub others: Vec<Api>,
    /// Those of its kinds of handles that are objects of the front end, with the status for a pointer to none of the kind.
    pub objects: Vec<(String, i32)>,
    /// Its functions. Their places are their numbers on the wire.
    pub functions: Vec<Function>,
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

impl Api {
    /// The status for a pointer to no object of this kind. None when the kind is of handles that are plain numbers.
    pub fn object(&self, kind: &str) -> Option<i32> {
        self.objects.iter().find(|(name, _)| name == kind).map(|(_, status)| *status)
    }
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

/// The type of an argument: see the table of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    Scalar(String),
    Handle(String),
    New(String),
    Free(String),
    In(String, Length),
    InHandles(String, Length),
    Out(String, Length),
    Text,
    Null,
    Foreign(ForeignHandle),
    Scalars(Scalars),
    Maybe(String),
    Want(String),
    List(String, Length, i32),
    Info,
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

/// How many values an array has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Length {
    /// Always so many.
    Fixed(usize),
    /// So many times as many as another argument says.
    Argument(usize, String),
}

const SCALARS: [&str; 11] = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "usize"];

/// Reads a description that uses no other. An error names the statement and what is wrong with it.
pub fn parse(text: &str) -> Result<Api, String> {
    parse_among(text, &|name| Err(format!("there is no description of {name}")))
}

/// Reads a description; `other` finds those of APIs that it uses.
pub(crate) fn parse_among(text: &str, other: &dyn Fn(&str) -> Result<Api, String>) -> Result<Api, String> {
    let bare: String = text.lines().map(|line| line.split('#').next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut api = Api {
        name: String::new(),
        number: 0,
        statuses: Statuses::default(),
        handles: Vec::new(),
        others: Vec::new(),
        objects: Vec::new(),
        functions: Vec::new(),
    };
    let mut families = Vec::new();
    for statement in bare.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        let (word, rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
        let read = match word {
            "api" => read_api(&mut api, rest),
            "status" => read_statuses(&mut api.statuses, rest),
            "handle" => read_handle(&mut api, rest),
            "object" => read_object(&mut api, rest),
            "use" => other(rest.trim()).map(|used| api.others.push(used)),
            "fn" => read_functions(&mut api, rest),
            "family" => read_family(&mut families, rest),
            "each" => read_each(&mut api, &families, rest),
            "refused" => {
                for name in rest.split_whitespace() {
                    let name = name.to_owned();
                    api.functions.push(Function {
                        name,
                        arguments: Vec::new(),
                        returns: None,
                        way: Way::Refused,
                        blocks: false,
                        by_hand_on_server: false,
                        wrapped: false,
                    });
                }
                Ok(())
            }
            _ => Err("it begins with none of api, status, use, handle, object, family, fn, each, refused".to_owned()),
        };
        read.map_err(|why| format!("in the statement \"{statement}\": {why}"))?;
    }
    for (i, function) in api.functions.iter().enumerate() {
        if api.functions[..i].iter().any(|earlier| earlier.name == function.name) {
            return Err(format!("{} is described twice", function.name));
        }
    }
    Ok(api)
}

fn read_api(api: &mut Api, rest: &str) -> Result<(), String> {
    let (name, number) = rest.split_once(' ').ok_or("write: api NAME NUMBER")?;
    api.name = name.to_owned();
    api.number = number.trim().parse().map_err(|_| "the number is none of 1 to 255")?;
    Ok(())
}

fn read_statuses(statuses: &mut Statuses, rest: &str) -> Result<(), String> {
    let words: Vec<_> = rest.split_whitespace().collect();
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err("write pairs of name and value".into()) };
        let value = value.parse().map_err(|_| format!("{value} is no number"))?;
        *match *name {
            "ok" => &mut statuses.ok,
            "lost" => &mut statuses.lost,
            "invalid" => &mut statuses.invalid,
            "handle" => &mut statuses.handle,
            "unsupported" => &mut statuses.unsupported,
            "missing" => &mut statuses.missing,
            "failed" => &mut statuses.failed,
            _ => return Err(format!("{name} is no status that stubs return")),
        } = value;
    }
    Ok(())
}

fn read_handle(api: &mut Api, rest: &str) -> Result<(), String> {
    let (name, first) = rest.split_once(' ').unwrap_or((rest, "1"));
    let first = first.trim().parse().map_err(|_| "the first handle is no number")?;
    api.handles.push((name.trim().to_owned(), first));
    Ok(())
}

fn read_object(api: &mut Api, rest: &str) -> Result<(), String> {
    let (name, status) = rest.split_once(' ').ok_or("write: object NAME STATUS")?;
    let status = status.trim().parse().map_err(|_| "the status is no number")?;
    api.handles.push((name.to_owned(), 1));
    api.objects.push((name.to_owned(), status));
    Ok(())
}

/// Functions that differ in the letter of their names and the type that it stands for: the family's name, and each letter with its type.
type Family = (String, Vec<(String, String)>);

fn read_family(families: &mut Vec<Family>, rest: &str) -> Result<(), String> {
    let (name, members) = rest.split_once(' ').ok_or("write: family NAME LETTER TYPE, ...")?;
    let members = members.split(',').map(|member| {
        let (letter, r#type) = member.trim().split_once(' ').ok_or("write a letter and a type for each member")?;
        Ok((letter.to_owned(), r#type.trim().to_owned()))
    });
    families.push((name.to_owned(), members.collect::<Result<_, String>>()?));
    Ok(())
}

fn read_each(api: &mut Api, families: &[Family], rest: &str) -> Result<(), String> {
    let (name, function) = rest.split_once(" fn ").ok_or("write: each FAMILY fn ...")?;
    let (_, members) = families.iter().find(|(family, _)| family == name.trim()).ok_or(format!("there is no family {name}"))?;
    for (letter, r#type) in members {
        read_functions(api, &function.replacen('*', letter, 1).replace('*', r#type))?;
    }
    Ok(())
}

/// Reads a function, and adds its twin with numbers of 64 bits where it has one.
fn read_functions(api: &mut Api, rest: &str) -> Result<(), String> {
    let narrow = rest.strip_suffix(" wide");
    let function = read_function(api, &numbers(narrow.unwrap_or(rest), "i32"))?;
    api.functions.push(function);
    if let Some(rest) = narrow {
        let mut function = read_function(api, &numbers(rest, "i64"))?;
        function.name += "_64";
        api.functions.push(function);
    }
    Ok(())
}

/// Puts a type in the place of `int`.
fn numbers(function: &str, r#type: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    function
        .split_inclusive(|c: char| !is_word(c))
        .map(|word| match word.strip_prefix("int") {
            Some(end) if !end.starts_with(is_word) => format!("{type}{end}"),
            _ => word.to_owned(),
        })
        .collect()
}

fn read_function(api: &Api, rest: &str) -> Result<Function, String> {
    let (name, rest) = rest.split_once('(').ok_or("an argument list is missing")?;
    let (list, words) = rest.rsplit_once(')').ok_or("the argument list has no end")?;
    let mut arguments = Vec::new();
    for argument in split_list(list).into_iter().map(str::trim).filter(|a| !a.is_empty()) {
        let (name, r#type) = argument.split_once(':').ok_or(format!("the argument \"{argument}\" has no type"))?;
        arguments.push(Argument { name: name.trim().to_owned(), r#type: read_type(api, r#type.trim())? });
    }
    let mut words = words.split_whitespace().peekable();
    let returns = match words.next_if_eq(&"returns") {
        Some(_) => Some(words.next().map(str::to_owned).ok_or("the kind that it returns is missing")?),
        None => None,
    };
    if let Some(kind) = returns.as_ref().filter(|kind| api.object(kind).is_none()) {
        return Err(format!("{kind} is no object"));
    }
    let way = match words.next() {
        Some("sync") => Way::Sync,
        Some("async") => Way::Async,
        Some("cached") => Way::Cached,
        Some("local") => Way::Local,
        Some("manual") => Way::Manual,
        Some("refused") => Way::Refused,
        Some("retain") => Way::Retain,
        Some("release") => Way::Release,
        other => return Err(format!("{} is no way to call a function", other.unwrap_or("nothing"))),
    };
    let (mut blocks, mut by_hand_on_server, mut wrapped) = (false, way == Way::Manual, false);
    for word in words {
        match word {
            "blocks" => blocks = true,
            "server" => by_hand_on_server = true,
            "wrapped" => wrapped = true,
            _ => return Err(format!("{word} says nothing about a function")),
        }
    }
    let function = Function { name: name.trim().to_owned(), arguments, returns, way, blocks, by_hand_on_server, wrapped };
    check(api, &function)?;
    Ok(function)
}

/// The parts between commas that are in no brackets.
fn split_list(list: &str) -> Vec<&str> {
    let mut depth = 0;
    list.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .collect()
}

fn check(api: &Api, function: &Function) -> Result<(), String> {
    let waits = matches!(function.way, Way::Sync | Way::Cached);
    for argument in &function.arguments {
        let written = matches!(&argument.r#type, Type::Out(..) | Type::Info | Type::Scalars(Scalars { written: true, .. }));
        if written && function.way == Way::Async {
            return Err(format!("{} comes in a reply, for which an async function does not wait", argument.name));
        }
        if let Type::In(_, Length::Argument(_, of))
        | Type::InHandles(_, Length::Argument(_, of))
        | Type::Out(_, Length::Argument(_, of))
        | Type::List(_, Length::Argument(_, of), _) = &argument.r#type
        {
            let is_number = function.arguments.iter().any(|other| other.name == *of && matches!(other.r#type, Type::Scalar(_)));
            if !is_number {
                return Err(format!("the length of {} is {of}, which is no argument with a number", argument.name));
            }
        }
    }
    let of_one_object =
        matches!(function.arguments.as_slice(), [Argument { r#type: Type::Handle(kind), .. }] if api.object(kind).is_some());
    if matches!(function.way, Way::Retain | Way::Release) && !of_one_object {
        return Err("only an object by itself is retained or released".into());
    }
    if function.blocks && !waits && function.way != Way::Manual {
        return Err("only a function that is waited for can block".into());
    }
    Ok(())
}

fn read_type(api: &Api, text: &str) -> Result<Type, String> {
    let is_handle = |name: &str| api.handles.iter().any(|(handle, _)| handle == name);
    let named = |name: &str| {
        if is_handle(name) {
            Ok(name.to_owned())
        } else {
            Err(format!("{name} is no handle"))
        }
    };
    let object = |name: &str| match api.object(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!("{name} is no object")),
    };
    let scalar = |name: &str| {
        if SCALARS.contains(&name) {
            Ok(name.to_owned())
        } else {
            Err(format!("{name} is neither a number nor a handle"))
        }
    };
    match text.split_once(' ') {
        None if text == "str" => Ok(Type::Text),
        None if text == "null" => Ok(Type::Null),
        None if text == "info" => Ok(Type::Info),
        None if is_handle(text) => Ok(Type::Handle(text.to_owned())),
        None if text.contains('.') => read_foreign(api, text),
        None => Ok(Type::Scalar(scalar(text)?)),
        Some(("new", name)) => Ok(Type::New(named(name)?)),
        Some(("free", name)) => Ok(Type::Free(named(name)?)),
        Some(("maybe", name)) => Ok(Type::Maybe(object(name)?)),
        Some(("want", name)) => Ok(Type::Want(object(name)?)),
        Some(("list", what)) => {
            let (what, status) = what.rsplit_once(' ').ok_or("write: list KIND[n] STATUS")?;
            let (name, length) = read_array(what)?;
            Ok(Type::List(object(name)?, length, status.parse().map_err(|_| format!("{status} is no status"))?))
        }
        Some(("in", what)) => {
            let (name, length) = read_array(what)?;
            if is_handle(name) {
                return Ok(Type::InHandles(name.to_owned(), length));
            }
            Ok(Type::In(scalar(name)?, length))
        }
        Some(("out", what)) => {
            let (name, length) = read_array(what)?;
            Ok(Type::Out(scalar(name)?, length))
        }
        Some(("scalar", what)) => read_scalars(what, true, false),
        Some(("result", what)) => read_scalars(what, false, true),
        Some(("inout", what)) => read_scalars(what, true, true),
        Some(_) => Err(format!("\"{text}\" is no type")),
    }
}

fn read_foreign(api: &Api, text: &str) -> Result<Type, String> {
    let (of, name) = text.split_once('.').ok_or("write: API.HANDLE")?;
    let other = api.others.iter().find(|other| other.name == of).ok_or(format!("write \"use {of}\" first"))?;
    let kind = other.handles.iter().position(|(handle, _)| handle == name).ok_or(format!("{text} is no handle"))?;
    Ok(Type::Foreign(ForeignHandle { api: of.to_owned(), name: name.to_owned(), kind, first: other.handles[kind].1 }))
}

fn read_scalars(text: &str, read: bool, written: bool) -> Result<Type, String> {
    let (what, handle) = match text.split_once(" of ") {
        Some((what, handle)) => (what.trim(), Some(handle.trim().to_owned())),
        None => (text.trim(), None),
    };
    let bytes = if what.ends_with(')') {
        what.to_owned()
    } else {
        let (name, length) = read_array(what)?;
        let Length::Fixed(count) = length else { return Err(format!("{what} has no fixed length")) };
        (scalar_bytes(name)? * count).to_string()
    };
    Ok(Type::Scalars(Scalars { read, written, bytes, handle }))
}

fn scalar_bytes(name: &str) -> Result<usize, String> {
    match name {
        "u8" | "i8" => Ok(1),
        "u16" | "i16" => Ok(2),
        "u32" | "i32" | "f32" => Ok(4),
        "u64" | "i64" | "f64" | "usize" => Ok(8),
        _ => Err(format!("{name} is no number")),
    }
}

fn read_array(text: &str) -> Result<(&str, Length), String> {
    let Some((name, length)) = text.split_once('[') else { return Ok((text, Length::Fixed(1))) };
    let length = length.strip_suffix(']').ok_or("a length has no end")?.trim();
    let length = match length.parse() {
        Ok(count) => Length::Fixed(count),
        Err(_) => match length.split_once(" * ") {
            Some((times, name)) => Length::Argument(times.parse().map_err(|_| format!("{times} is no number"))?, name.to_owned()),
            None => Length::Argument(1, length.to_owned()),
        },
    };
    Ok((name.trim(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "api x 7; status ok 0 lost 1; handle S 3; object O -34; ";

    #[test]
    fn a_description_is_read() {
        let api = parse(&format!("{HEAD} fn make(s: new S, flags: u32) async; # why\n fn get(p: out u8[n], n: usize, s: S) sync blocks;"))
            .unwrap();
        assert_eq!((api.name.as_str(), api.number, api.functions.len()), ("x", 7, 2));
        assert_eq!(api.functions[0].arguments[0].r#type, Type::New("S".into()));
        assert_eq!(api.functions[1].arguments[0].r#type, Type::Out("u8".into(), Length::Argument(1, "n".into())));
        assert!(api.functions[1].blocks);
    }

    #[test]
    fn families_and_wide_functions_are_many() {
        let text = format!("{HEAD} family SC S f32, C f32[2]; each SC fn x*scal(s: S, n: int, a: scalar * of s, integer: i32) async wide;");
        let functions = parse(&text).unwrap().functions;
        let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["xSscal", "xSscal_64", "xCscal", "xCscal_64"]);
        assert_eq!(functions[0].arguments[1].r#type, Type::Scalar("i32".into()));
        assert_eq!(functions[1].arguments[1].r#type, Type::Scalar("i64".into()));
        let scalars = Scalars { read: true, written: false, bytes: "8".into(), handle: Some("s".into()) };
        assert_eq!(functions[2].arguments[2].r#type, Type::Scalars(scalars));
        assert_eq!(functions[2].arguments[3].name, "integer");
    }

    #[test]
    fn handles_of_other_apis_are_found_there() {
        let cuda = |_: &str| parse("api cuda 1; handle C; handle S 3");
        let api = parse_among("api x 7; use cuda; fn f(stream: cuda.S) sync", &cuda).unwrap();
        let handle = ForeignHandle { api: "cuda".into(), name: "S".into(), kind: 1, first: 3 };
        assert_eq!(api.functions[0].arguments[0].r#type, Type::Foreign(handle));
        assert!(parse_among("api x 7; fn f(stream: cuda.S) sync", &cuda).unwrap_err().contains("use cuda"));
    }

    #[test]
    fn objects_are_read() {
        let api = parse(&format!(
            "{HEAD} fn make(o: O, of: maybe O) returns O sync; fn run(o: O, n: u32, after: list O[n] -57, done: want O) async; fn drop(o: O) release;"
        ))
        .unwrap();
        assert_eq!((api.object("O"), api.object("S")), (Some(-34), None));
        assert_eq!(api.functions[0].returns.as_deref(), Some("O"));
        assert_eq!(api.functions[0].arguments[1].r#type, Type::Maybe("O".into()));
        assert_eq!(api.functions[1].arguments[2].r#type, Type::List("O".into(), Length::Argument(1, "n".into()), -57));
        assert_eq!(api.functions[1].arguments[3].r#type, Type::Want("O".into()));
        assert_eq!(api.functions[2].way, Way::Release);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, complaint) in [
            ("fn f(a: out i32) async", "does not wait"),
            ("fn f(a: T) sync", "neither a number nor a handle"),
            ("fn f(a: out u8[n]) sync", "no argument with a number"),
            ("fn f(a: i32) later", "no way to call"),
            ("fn f() sync; fn f() sync", "described twice"),
            ("fn f() async blocks", "can block"),
            ("fn f() returns S sync", "S is no object"),
            ("fn f(a: maybe S) sync", "S is no object"),
            ("fn f(a: list O[n] -57) sync", "no argument with a number"),
            ("fn f(a: info) async", "does not wait"),
            ("fn f(a: O, b: O) release", "by itself"),
            ("verb f", "begins with none"),
        ] {
            let error = parse(&format!("{HEAD}{text};")).unwrap_err();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }
}
