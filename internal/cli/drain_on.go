package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// drainCauses makes causes the value of a flag.
type drainCauses struct{ value *[]api.DrainCause }

// drainOnFlag adds the flag of the findings for which nodes are drained.
func drainOnFlag(cmd *cobra.Command, causes *[]api.DrainCause) {
	*causes = []api.DrainCause{api.DrainCriticalSensor, api.DrainECCUncorrected, api.DrainDiskFailing}
	cmd.Flags().Var(drainCauses{causes}, "drain-on", "drain nodes, without moving their members, for these findings: "+listOf(api.DrainCauses())+" (\"\": none)")
}

// String lists the causes.
func (d drainCauses) String() string {
	if d.value == nil {
		return ""
	}
	return listOf(*d.value)
}

func listOf(causes []api.DrainCause) string {
	var all []string
	for _, c := range causes {
		all = append(all, string(c))
	}
	return strings.Join(all, ",")
}

// Set reads a list of causes.
func (d drainCauses) Set(text string) error {
	*d.value = nil
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		if !slices.Contains(api.DrainCauses(), api.DrainCause(one)) {
			return fmt.Errorf("%q is not a finding that nodes are drained for; use some of %s", one, listOf(api.DrainCauses()))
		}
		*d.value = append(*d.value, api.DrainCause(one))
	}
	return nil
}

// Type names the flag's value.
func (drainCauses) Type() string { return "findings" }
