package cli

import (
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) networkSet() *cobra.Command {
	var set, remove []string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Change the records of a project's network", Args: oneArg("network"), ValidArgsFunction: a.completeNetworks,
		Long: `Change the records of a project's network: names of the project's own, such as that of a licence server. Members of clusters on the network
find them by DNS and in /etc/hosts, running members at once. Names of members and clusters win.`,
		Example: "  nearmetal network set project/lab --add-record licence=10.20.0.5\n  nearmetal network set project/lab --add-record db.lab=10.64.128.20,10.64.128.21 --remove-record licence",
	}
	flags := cmd.Flags()
	// Not slices: commas separate addresses.
	flags.StringArrayVar(&set, "add-record", nil, "NAME=ADDRESS[,ADDRESS...]: add a record, or replace the one of that name; may be repeated")
	flags.StringArrayVar(&remove, "remove-record", nil, "NAME of a record to remove, may be repeated")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		change := api.NetworkRecords{Remove: remove}
		for _, text := range set {
			record, err := parseRecord(text)
			if err != nil {
				return err
			}
			change.Set = append(change.Set, record)
		}
		if len(set)+len(remove) == 0 {
			return usage("nothing to change; give --add-record NAME=ADDRESS or --remove-record NAME")
		}
		if err := manifest.CheckNetworkRecords(change, nil); err != nil {
			return usage("%v", recordFlags(err, set, remove))
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		n, err := c.ChangeNetworkRecords(cmd.Context(), args[0], change)
		if err != nil {
			return recordFlags(err, set, remove)
		}
		return out.print(a.Streams.Out, n, func(w io.Writer) { printNetwork(w, &n) })
	}
	return cmd
}

// recordFlags names the flags, as they were given, where an error names fields of a change.
func recordFlags(err error, set, remove []string) error {
	named := func(problems []api.FieldProblem) *manifest.Invalid {
		renamed := &manifest.Invalid{}
		for _, p := range problems {
			flag, given := "--add-record", set
			if strings.HasPrefix(p.Location, "remove") {
				flag, given = "--remove-record", remove
			}
			_, rest, _ := strings.Cut(p.Location, "[")
			index, _, _ := strings.Cut(rest, "]")
			if i, err := strconv.Atoi(index); err == nil && i < len(given) {
				flag += " " + given[i]
			}
			p.Location, p.Line = flag, 0
			renamed.Problems = append(renamed.Problems, p)
		}
		return renamed
	}
	var invalid *manifest.Invalid
	if errors.As(err, &invalid) {
		return named(invalid.Problems)
	}
	var refused *client.Error
	if !errors.As(err, &refused) || len(refused.Errors) == 0 {
		return err
	}
	told := *refused
	told.Detail = named(refused.Errors).Error()
	return &told
}

// parseRecord reads NAME=ADDRESS[,ADDRESS...].
func parseRecord(text string) (api.NetworkRecord, error) {
	name, addresses, ok := strings.Cut(text, "=")
	if !ok || name == "" || addresses == "" {
		return api.NetworkRecord{}, usage("--add-record %s: write NAME=ADDRESS, such as licence=10.20.0.5", text)
	}
	return api.NetworkRecord{Name: name, Addresses: strings.Split(addresses, ",")}, nil
}

func printRecords(w io.Writer, records []api.NetworkRecord) {
	if len(records) == 0 {
		return
	}
	_, _ = io.WriteString(w, "\n")
	t := newTable(w, "RECORD", "ADDRESSES")
	for _, r := range records {
		t.row(r.Name, strings.Join(r.Addresses, ","))
	}
	t.flush()
}
