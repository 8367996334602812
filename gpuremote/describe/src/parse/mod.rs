//! Descriptions as text: their statements.

mod functions;
mod types;

use crate::api::{Api, Function, Object, Statuses};
use functions::{read_each, read_family, read_functions};

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
        order: Vec::new(),
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
            "order" => {
                api.order.extend(rest.split_whitespace().map(str::to_owned));
                Ok(())
            }
            "use" => other(rest.trim()).map(|used| api.others.push(used)),
            "fn" => read_functions(&mut api, rest),
            "family" => read_family(&mut families, rest),
            "each" => read_each(&mut api, &families, rest),
            "refused" => {
                api.functions.extend(rest.split_whitespace().map(Function::refused));
                Ok(())
            }
            _ => Err("it begins with none of api, status, use, handle, object, order, family, fn, each, refused".to_owned()),
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
    let (kind, status) = rest.split_once(' ').ok_or("write: object NAME STATUS")?;
    let wrong = status.trim().parse().map_err(|_| "the status is no number")?;
    api.handles.push((kind.to_owned(), 1));
    api.objects.push(Object { kind: kind.to_owned(), wrong });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ForeignHandle, Length, Objects, Scalars, Type, Way};

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
        let object = Object { kind: "O".into(), wrong: -34 };
        assert_eq!((api.object("O"), api.object("S")), (Some(&object), None));
        assert_eq!(api.functions[0].returns.as_deref(), Some("O"));
        assert_eq!(api.functions[0].arguments[1].r#type, Type::Maybe(object));
        let list = Objects { kind: "O".into(), length: Length::Argument(1, "n".into()), wrong: -57, required: false };
        assert_eq!(api.functions[1].arguments[2].r#type, Type::Objects(list));
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
            ("fn f(a: new O) sync", "O is no handle"),
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
