// Package userdata is what a user gives cloud-init in virtual machines of other systems, beside what Nearmetal gives it.
//
// It is pure. It must never change a user's text: cloud-init reads that as it is. Start with Merge.
package userdata

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

// starts are the first characters by which cloud-init knows a text (cloud-init, "User data formats").
var starts = []string{
	"#!", "#cloud-config\n", "#cloud-config-archive", "#cloud-boothook", "#include-once", "#include\n", "#part-handler", "## template: jinja",
	"content-type: multipart/", "mime-version:",
}

// config is the first line of a text that is YAML.
const config = "#cloud-config\n"

// Check refuses user data that cloud-init would ignore, or that can't stand beside Nearmetal's.
func Check(text string) error {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	switch {
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return errors.New("is not text; give the text itself, uncompressed")
	case !known(text):
		first, _, _ := strings.Cut(text, "\n")
		return fmt.Errorf(`begins with %q, which cloud-init does not know; the first line must be #cloud-config, #! and a program, #cloud-boothook, #include, `+
			`#part-handler, "## template: jinja", or the header of a MIME multipart text`, short(first))
	case strings.HasPrefix(text, config):
		return checkConfig(text)
	}
	return nil
}

func known(text string) bool {
	head := strings.ToLower(text[:min(len(text), 64)]) + "\n"
	for _, start := range starts {
		if strings.HasPrefix(head, start) {
			return true
		}
	}
	return false
}

func short(line string) string {
	const most = 40
	if len(line) > most {
		return line[:most] + "..."
	}
	return line
}

// checkConfig refuses a cloud-config to which no users could be added.
func checkConfig(text string) error {
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
		return fmt.Errorf("is not a cloud-config: after #cloud-config, YAML with named fields must follow (%s)", firstLine(err))
	}
	for _, list := range []string{"users", "write_files"} {
		if value, given := fields[list]; given {
			if _, ok := value.([]any); !ok {
				return fmt.Errorf("has %s that are not a list; write a list, to which the cluster's own are added", list)
			}
		}
	}
	return nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Config is a cloud-config of Nearmetal, divided by how it stands beside a user's.
type Config struct {
	// Defaults are what a user may set otherwise, Fixed replaces what a user sets, Added holds lists that go behind the user's.
	Defaults, Fixed, Added map[string]any
}

// addLists has cloud-init append lists, and leave all else (cloud-init, "Merging user data sections").
const addLists = "dict(no_replace,recurse_list)+list(append)+str()"

// Alone returns the user data of a machine whose user gives none.
func (c Config) Alone() ([]byte, error) {
	all := maps.Clone(c.Defaults)
	maps.Copy(all, c.Fixed)
	maps.Copy(all, c.Added)
	return cloudConfig(all)
}

// cloudConfig writes a cloud-config. JSON is YAML.
func cloudConfig(fields map[string]any) ([]byte, error) {
	text, err := json.MarshalIndent(fields, "", " ")
	return append([]byte(config), text...), err
}

// Merge returns the user data of a machine: a MIME multipart text of Nearmetal's parts and the user's. cloud-init merges them in their order.
func Merge(own Config, user string) ([]byte, error) {
	added := maps.Clone(own.Added)
	added["merge_how"] = addLists
	defaults, err1 := cloudConfig(own.Defaults)
	fixed, err2 := cloudConfig(own.Fixed)
	lists, err3 := cloudConfig(added)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	var boundary strings.Builder
	boundary.WriteString("nearmetal")
	for strings.Contains(user, boundary.String()) { // what separates the parts must be in none
		boundary.WriteString("-x")
	}
	line := "--" + boundary.String()
	var out strings.Builder
	fmt.Fprintf(&out, "Content-Type: multipart/mixed; boundary=\"%s\"\nMIME-Version: 1.0\n\n", boundary.String())
	const ours, theirs = "text/cloud-config", `text/plain; charset="utf-8"` // of the latter cloud-init finds out which kind it is
	part(&out, line, ours, defaults)
	if isMultipart(user) {
		out.WriteString(line + "\n" + user + "\n") // parts in a part
	} else {
		part(&out, line, theirs, []byte(user))
	}
	part(&out, line, ours, fixed)
	part(&out, line, ours, lists)
	out.WriteString(line + "--\n")
	return []byte(out.String()), nil
}

func isMultipart(text string) bool {
	head := strings.ToLower(text[:min(len(text), 64)])
	return strings.HasPrefix(head, "content-type: multipart/") || strings.HasPrefix(head, "mime-version:")
}

// part writes a part of a multipart text (RFC 2045, section 6.8).
func part(out *strings.Builder, line, kind string, text []byte) {
	const width = 76
	fmt.Fprintf(out, "%s\nContent-Type: %s\nMIME-Version: 1.0\nContent-Transfer-Encoding: base64\n\n", line, kind)
	for body := base64.StdEncoding.EncodeToString(text); body != ""; {
		n := min(width, len(body))
		out.WriteString(body[:n] + "\n")
		body = body[n:]
	}
}
