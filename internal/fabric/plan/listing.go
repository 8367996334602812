package plan

import (
	"regexp"
	"slices"
	"strings"
)

// ownTable matches the names of this product's tables, also those earlier versions made for each network.
var ownTable = regexp.MustCompile(`^table (\w+ nm\d*) \{$`)

// ParseListing reads this product's tables out of what `nft -y list ruleset` prints, or out of a script of ours.
func ParseListing(listing string) Ruleset {
	rules := Ruleset{}
	p := tableParser{}
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		if p.name == "" {
			if m := ownTable.FindStringSubmatch(line); m != nil {
				p = tableParser{name: m[1], text: []string{line}, sets: map[string][]string{}, depth: 1}
			}
			continue
		}
		p.line(line)
		if p.depth == 0 {
			rules[p.name] = Table{Text: skeleton(strings.Join(p.text, "\n")), Sets: sortSets(p.sets)}
			p = tableParser{}
		}
	}
	return rules
}

// OthersBridge reports whether others have rules for bridged frames in what `nft -y list ruleset` prints.
func OthersBridge(listing string) bool {
	return othersHook(listing, regexp.MustCompile(`^table bridge `), regexp.MustCompile(`\bhook `))
}

// OthersUnderlay reports whether others have rules for IPv4 packets to or from this node in what `nft -y list ruleset` prints.
func OthersUnderlay(listing string) bool {
	return othersHook(listing, regexp.MustCompile(`^table (ip|inet|netdev) `), regexp.MustCompile(`\bhook (prerouting|input|output|postrouting|ingress|egress)\b`))
}

// othersHook reports whether a chain of others is at a hook like this in a table like this.
func othersHook(listing string, table, hook *regexp.Regexp) bool {
	others := false // in the middle of a table of theirs
	for line := range strings.Lines(listing) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "table ") {
			others = table.MatchString(line) && !ownTable.MatchString(line)
		}
		if others && strings.HasPrefix(strings.TrimSpace(line), "type ") && hook.MatchString(line) {
			return true
		}
	}
	return false
}

// tableParser is in the middle of a table.
type tableParser struct {
	name       string
	text       []string
	sets       map[string][]string
	depth      int // of braces
	set        string
	inElements bool
}

func (p *tableParser) line(line string) {
	if p.inElements || strings.HasPrefix(line, "elements = {") {
		rest, closed := strings.CutSuffix(strings.TrimPrefix(line, "elements = {"), "}")
		p.sets[p.set] = append(p.sets[p.set], splitElements(rest)...)
		p.inElements = !closed
		return
	}
	if header, ok := strings.CutPrefix(line, "set "); ok {
		p.set = strings.TrimSuffix(header, " {")
		p.sets[p.set] = nil
	}
	p.text = append(p.text, line)
	if strings.HasSuffix(line, "{") {
		p.depth++
	}
	if line == "}" {
		p.depth--
	}
}

// splitElements splits a piece of an element list at its commas.
func splitElements(list string) []string {
	var elements []string
	for e := range strings.SplitSeq(list, ",") {
		if e = strings.TrimSpace(e); e != "" {
			elements = append(elements, e)
		}
	}
	slices.Sort(elements)
	return elements
}

// skeleton is the text of a table, evenly indented and without empty lines.
func skeleton(text string) string {
	var b strings.Builder
	depth := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if line == "}" {
			depth--
		}
		b.WriteString(strings.Repeat("\t", max(depth, 0)))
		b.WriteString(line)
		b.WriteByte('\n')
		if strings.HasSuffix(line, "{") {
			depth++
		}
	}
	return b.String()
}
