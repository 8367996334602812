package modelhost

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// node is a file, a folder or a symbolic link. Files without write are read-only.
type node struct {
	below map[string]*node
	read  func() (string, error)
	write func(text string) error
	link  string
}

// put makes a file, with the folders that lead to it.
func (n *node) put(name string, leaf *node) {
	at := n
	parts := strings.Split(strings.Trim(name, "/"), "/")
	for _, part := range parts[:len(parts)-1] {
		next := at.below[part]
		if next == nil {
			next = &node{below: map[string]*node{}}
			at.below[part] = next
		}
		at = next
	}
	at.below[parts[len(parts)-1]] = leaf
}

// remove takes a file away, or a folder with all that is in it. Folders stay.
func (n *node) remove(name string) {
	parent, leaf := path.Split(strings.Trim(name, "/"))
	if dir := n.find(parent); dir != nil {
		delete(dir.below, leaf)
	}
}

func (n *node) find(name string) *node {
	at := n
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if part == "" {
			continue
		}
		if at = at.below[part]; at == nil {
			return nil
		}
	}
	return at
}

// match appends the names that match a pattern, sorted.
func (n *node) match(at string, pattern []string, found []string) []string {
	if len(pattern) == 0 {
		return append(found, at)
	}
	if !strings.ContainsAny(pattern[0], `*?[\`) {
		if next := n.below[pattern[0]]; next != nil {
			return next.match(at+"/"+pattern[0], pattern[1:], found)
		}
		return found
	}
	names := make([]string, 0, len(n.below))
	for name := range n.below {
		if ok, _ := path.Match(pattern[0], name); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		found = n.below[name].match(at+"/"+name, pattern[1:], found)
	}
	return found
}

// value is a file with a text that never changes.
func value(text string) *node { return &node{read: func() (string, error) { return text, nil }} }

// shown is a file whose text follows from the model.
func shown(text func() string) *node {
	return &node{read: func() (string, error) { return text(), nil }}
}

// linkTo is a symbolic link.
func linkTo(target string) *node { return &node{link: target, below: map[string]*node{}} }

// only is a file that can be written and not read.
func only(write func(text string) error) *node {
	return &node{read: func() (string, error) { return "", unix.EACCES }, write: write}
}
