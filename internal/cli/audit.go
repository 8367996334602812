package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "List and verify the audit log", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.auditList(), a.auditVerify())
	return a.connects(cmd)
}

func (a *app) auditList() *cobra.Command {
	var q client.AuditQuery
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the audit log, newest first", Args: noArgs,
		Long: `List the audit log, newest first: every requested change, every connection to a member or a console, and every refusal, with user, origin and
outcome. For administrators only. Refusals of strangers that come faster than one a second are counted, not listed.`,
		Example: "  nearmetal audit list --failed -n 20",
	}
	flags := cmd.Flags()
	flags.StringVar(&q.User, "user", "", "list only requests of this user")
	flags.BoolVar(&q.Failed, "failed", false, "list only refused and failed requests")
	flags.IntVarP(&q.Limit, "lines", "n", 100, "maximum number of records")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if q.Limit < 1 {
			return usage("--lines: %d is too small; give at least 1", q.Limit)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		records, err := c.Audit(cmd.Context(), q)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, records, func(w io.Writer) {
			t := newTable(w, "NUMBER", "TIME", "USER", "ROLE", "FROM", "STATUS", "ACTION", "REMARKS")
			for _, r := range records {
				status := ""
				if r.Status > 0 {
					status = strconv.Itoa(r.Status)
				}
				t.row(strconv.FormatInt(r.Seq, 10), r.At.Format("2006-01-02T15:04:05Z"), r.User, string(r.Role), r.From, status, r.Action, remarks(r))
			}
			t.flush()
		})
	}
	return cmd
}

// remarks are what a record says besides who asked for what.
func remarks(r api.AuditRecord) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if r.Code != "" {
		add("%s", r.Code)
	}
	if r.Object != "" {
		add("made %s", r.Object)
	}
	if r.Detail != "" {
		add("%s", r.Detail)
	}
	if r.Removed > 0 {
		add("up to record %d", r.Removed)
	}
	if r.Refused > 0 {
		add("%d more refusals before it", r.Refused)
	}
	if r.Lost > 0 {
		add("%d records before it could not be written", r.Lost)
	}
	return strings.Join(parts, "; ")
}

func (a *app) auditVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify", Short: "Verify that the audit log is unaltered", Args: noArgs,
		Long: `Verify that the audit log is unaltered. Each record is bound to the one before by a key of the site's secret, so a record that was changed,
removed or inserted is found. The exit code is 1 if anything is wrong.`,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		report, err := c.VerifyAudit(cmd.Context())
		if err != nil {
			return err
		}
		err = out.print(a.Streams.Out, report, func(w io.Writer) {
			if len(report.Problems) == 0 {
				fmt.Fprintf(w, "%d records are as they were written, from %d to %d\n", report.Records, report.First, report.Last)
			}
			if report.Lost > 0 {
				fmt.Fprintf(w, "%d records could not be written when they were due\n", report.Lost)
			}
		})
		if err == nil && len(report.Problems) > 0 {
			err = errors.New("the audit log is not as it was written:\n  " + strings.Join(report.Problems, "\n  "))
		}
		return err
	}
	return cmd
}
