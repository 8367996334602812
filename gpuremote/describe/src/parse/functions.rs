//! Functions, one by one and in families.

use super::types::read_type;
use crate::api::{Api, Argument, Function, Length, Objects, Scalars, Type, Way};

/// Functions that differ in the letter of their names and the type that it stands for: the family's name, and each letter with its type.
pub(super) type Family = (String, Vec<(String, String)>);

pub(super) fn read_family(families: &mut Vec<Family>, rest: &str) -> Result<(), String> {
    let (name, members) = rest.split_once(' ').ok_or("write: family NAME LETTER TYPE, ...")?;
    let members = members.split(',').map(|member| {
        let (letter, r#type) = member.trim().split_once(' ').ok_or("write a letter and a type for each member")?;
        Ok((letter.to_owned(), r#type.trim().to_owned()))
    });
    families.push((name.to_owned(), members.collect::<Result<_, String>>()?));
    Ok(())
}

pub(super) fn read_each(api: &mut Api, families: &[Family], rest: &str) -> Result<(), String> {
    let (name, function) = rest.split_once(" fn ").ok_or("write: each FAMILY fn ...")?;
    let (_, members) = families.iter().find(|(family, _)| family == name.trim()).ok_or(format!("there is no family {name}"))?;
    for (letter, r#type) in members {
        read_functions(api, &function.replacen('*', letter, 1).replace('*', r#type))?;
    }
    Ok(())
}

/// Reads a function, and adds its twin with numbers of 64 bits where it has one.
pub(super) fn read_functions(api: &mut Api, rest: &str) -> Result<(), String> {
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
    check(&function)?;
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

fn check(function: &Function) -> Result<(), String> {
    for argument in &function.arguments {
        let replied =
            matches!(&argument.r#type, Type::Out(..) | Type::Info | Type::Found(_) | Type::Scalars(Scalars { written: true, .. }));
        if replied && function.way == Way::Async {
            return Err(format!("{} comes in a reply, for which an async function does not wait", argument.name));
        }
        if let Type::In(_, length) | Type::InHandles(_, length) | Type::Out(_, length) | Type::Objects(Objects { length, .. }) =
            &argument.r#type
        {
            check_length(function, &argument.name, length)?;
        }
    }
    let of_one_object = matches!(function.arguments.as_slice(), [Argument { r#type: Type::Object(_), .. }]);
    if matches!(function.way, Way::Retain | Way::Release) && !of_one_object {
        return Err("only an object by itself is retained or released".into());
    }
    if function.blocks && !matches!(function.way, Way::Sync | Way::Cached | Way::Manual) {
        return Err("only a function that is waited for can block".into());
    }
    Ok(())
}

fn check_length(function: &Function, array: &str, length: &Length) -> Result<(), String> {
    let Length::Argument(_, of) = length else { return Ok(()) };
    let is_number = function.arguments.iter().any(|other| other.name == *of && matches!(other.r#type, Type::Scalar(_)));
    if !is_number {
        return Err(format!("the length of {array} is {of}, which is no argument with a number"));
    }
    Ok(())
}
