package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// phrase is a wording that texts for people do not have: it reads as translated, or says less than the words that replace it.
type phrase struct {
	pattern *regexp.Regexp
	why     string
	instead string
}

func phraseOf(pattern, why, instead string) phrase {
	return phrase{regexp.MustCompile(`(?i)` + pattern), why, instead}
}

// phrases is the table of them. Help, errors, events and logs are one language; one rule holds for all of them.
var phrases = []phrase{
	phraseOf(`(^|[.;:(] |, (and|or|but) )who(ever)? [^?]*$`,
		"a clause that begins with a bare who names nobody", "the noun: caller, user, peer, machine"),
	phraseOf(`\b(of|to|by|with|for|from|than|as|on|against) who(ever)?\b`, "a bare who names nobody", "the noun: the caller, the user that ..."),
	phraseOf(`\b(is|are|was|were|be|been|being|not|never) told\b`, "what is told, and by which means, stays open", "is reported, receives, is instructed"),
	phraseOf(`\b(as|so) (was|is|were) (told|asked|said)\b`, "it does not name the one that asked", "as the operator requested"),
	phraseOf(`\bmend(s|ed|ing)?\b`, "old-fashioned", "fix, repair"),
	phraseOf(`\blook(s|ed|ing)? after\b`, "says nothing of what is done", "inspect, maintain, monitor"),
	phraseOf(`\b(be|is|was|were|are|been) looked at\b`, "says nothing of what is done", "is inspected"),
	phraseOf(`\b(leav(e|es|ing)|left) ([^ ]+ )?away\b`, "not English for it", "omit, omitted"),
	phraseOf(`\bfor ever\b`, "a limit is meant", "no limit, indefinitely"),
	phraseOf(`\bof both\b`, "two things are better named", "--a conflicts with --b"),
	phraseOf(`\bshall\b`, "the voice of a contract", "must, will, or the imperative"),
	phraseOf(`\bgo(es)? without\b`, "it does not say what is disabled", "has no, is disabled"),
	phraseOf(`\bby hand, as\b`, "it does not name the person", "reported by the operator"),
	phraseOf(`\bno end of\b`, "ambiguous: without end, or many", "does not end the ..."),
	phraseOf(`\bstands?\s+on standard\b`, "nothing stands there", "is written to standard error"),
	phraseOf(`\b(those|these) there are\b`, "a translated relative clause", "'... list' lists them"),
	phraseOf(`\bon your word\b`, "an idiom out of place", "treat ... as ..."),
	phraseOf(`^although\b`, "it depends on the row above it", "proceed even if ..."),
	phraseOf(`\ball the same\b`, "an idiom with two meanings", "anyway, nevertheless"),
	phraseOf(`\banew\b`, "old-fashioned", "again"),
	phraseOf(`\b(take[sn]?|took) in\b`, "an idiom with many meanings", "enroll, accept"),
	phraseOf(`\b(which|what|that) it shall not\b`, "a translated construction", "conflicts with"),
	phraseOf(`\bthe like\b`, "vague", "name it"),
	phraseOf(`\benrol(s|ment|ments)?\b`, "the product spells it the American way, as its commands do", "enroll, enrollment"),
	phraseOf(`\bthere is (a|no) way to\b`, "a translated construction", "is reachable, is not reachable"),
	phraseOf(`\b(what|where|that) (this|it) one stands on\b`, "a translated construction", "base environment"),
}

// checkEnglish reports the phrases in the texts of the module, except in tests.
func checkEnglish(files []*File, report reporter) {
	for _, f := range files {
		if f.Test || f.Dir == "internal/archtest" || !(within(f.Dir, "api") || within(f.Dir, "internal") || within(f.Dir, "cmd")) {
			continue
		}
		for text, line := range f.texts {
			for _, p := range phrases {
				if found := p.pattern.FindString(text); found != "" {
					report(f.Path, line, "the text %.80q has %q (%s); write: %s", text, strings.TrimSpace(found), p.why, p.instead)
				}
			}
		}
	}
}

// texts yields the texts of a file that can be sentences, those that are joined by + as one, with their lines.
func (f *File) texts(yield func(text string, line int) bool) {
	stop := false
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case ast.Expr:
			text, literal := joinedText(n)
			if !literal {
				return !stop
			}
			if strings.Contains(strings.TrimSpace(text), " ") && !stop {
				stop = !yield(text, f.Line(n.Pos()))
			}
			return false
		}
		return !stop
	})
}

// joinedText is the text of a literal, or of literals and other things that are joined by +; false when no literal is among them.
func joinedText(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, one := joinedText(e.X)
			right, other := joinedText(e.Y)
			return left + right, one || other
		}
	}
	return "", false
}
