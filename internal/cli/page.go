package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Page is docs/cli.md.
func Page() string {
	a := &app{Invocation: Invocation{Getenv: func(string) string { return "" }}}
	root := a.root()
	var b strings.Builder
	b.WriteString(`# The command line

Generated from internal/cli by ` + "`go test ./internal/cli -run Documentation -update`" + `; do not edit.

` + root.Long + `

Objects are printed as a table, or with ` + "`-o json`" + ` or ` + "`-o yaml`" + ` with the field names of the API (/openapi.json). Commands that wait write their
progress to standard error: one line updated in place on a terminal, else a line for every change. Errors are written to standard error,
begin with "Error:", and say what was wrong, where, and what to do.

## Environment

| variable | meaning |
|---|---|
| ` + "`NEARMETAL_ADDR`" + ` | the server: HOST:PORT, https://HOST:PORT or unix:PATH |
| ` + "`NEARMETAL_TOKEN_FILE`" + ` | the token file for a server reached by TCP; by default "token" in the state directory. It must be readable by its owner only |
| ` + "`NEARMETAL_STATE`" + ` | the state directory of the server on this machine |

## Exit codes

| code | meaning |
|---|---|
`)
	for _, e := range exitMeanings {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, e.meaning)
	}
	b.WriteString(`
` + "`nearmetal run`" + ` returns the exit code of the job when the job ran, 128 + N when signal N ended it, and 130 when it was cancelled. A
job can end with the same codes as in the table. To distinguish them: only when the job could not be run is a line that
begins with "Error:" written to standard error. Where that matters, submit with ` + "`--detach`" + ` and read ` + "`.exit_code`" + ` from ` + "`nearmetal job show ID -o json`" + `.

## Commands
`)
	writeCommands(&b, root)
	return b.String()
}

// writeCommands describes the commands that do something, in the order of the tree.
func writeCommands(b *strings.Builder, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if cmd.Hidden || cmd.Name() == "help" {
			continue
		}
		if cmd.HasSubCommands() {
			writeCommands(b, cmd)
			continue
		}
		fmt.Fprintf(b, "\n### %s\n\n", cmd.CommandPath())
		text := cmd.Long
		if text == "" {
			text = cmd.Short + "."
		}
		fmt.Fprintf(b, "    %s\n\n%s\n", useLine(cmd), asMarkdown(text))
		if len(cmd.Aliases) > 0 {
			fmt.Fprintf(b, "\nAlso: `%s`.\n", strings.Join(cmd.Aliases, "`, `"))
		}
		if cmd.Example != "" {
			fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
		}
		writeFlags(b, cmd)
	}
}

// useLine is the usage without the word for flags that the table below lists.
func useLine(cmd *cobra.Command) string {
	return strings.TrimSuffix(cmd.UseLine(), " [flags]")
}

// asMarkdown keeps indented lines as they are, apart from the text around them.
func asMarkdown(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "\n  ", "\n    "), "<", "\\<")
}

func writeFlags(b *strings.Builder, cmd *cobra.Command) {
	var rows []string
	add := func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" && f.DefValue != "0" {
			value = "`" + f.DefValue + "`"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |\n", name, strings.ReplaceAll(f.Usage, "|", "\\|"), value))
	}
	cmd.NonInheritedFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	if len(rows) == 0 {
		return
	}
	slices.Sort(rows)
	rows = slices.Compact(rows)
	b.WriteString("\n| flag | meaning | default |\n|---|---|---|\n" + strings.Join(rows, ""))
}
