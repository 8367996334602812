package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

func (a *app) jobCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "job", Short: "Show, follow and cancel jobs", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.jobList(), a.jobShow(), a.jobLogs(), a.jobCancel())
	return a.connects(cmd)
}

func (a *app) jobList() *cobra.Command {
	var cluster string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List jobs, oldest first", Args: noArgs}
	cmd.Flags().StringVar(&cluster, "cluster", "", "only jobs of this cluster")
	out := outputFlag(cmd)
	_ = cmd.RegisterFlagCompletionFunc("cluster", a.completeClusters(1)) // only fails for a flag that does not exist
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		jobs, err := c.Jobs(cmd.Context(), cluster)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, jobs, func(w io.Writer) {
			t := newTable(w, "ID", "CLUSTER", "PHASE", "EXIT", "RANKS", "ATTEMPT", "AGE", "COMMAND")
			for _, j := range jobs {
				t.row(j.ID, j.Cluster, string(j.Phase), exitText(j), ranksText(j), attemptText(j), a.age(j.CreatedAt), shorten(commandText(j), 60))
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) jobShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show ID", Short: "Show a job", Args: oneArg("job"), ValidArgsFunction: a.completeJobs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		j, err := c.Job(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, j, func(w io.Writer) {
			took := ""
			if j.StartedAt != nil && j.EndedAt != nil {
				took = fmt.Sprintf("%.1fs", j.EndedAt.Sub(*j.StartedAt).Seconds())
			}
			fields(w, "ID", j.ID, "Cluster", j.Cluster, "Phase", string(j.Phase), "Message", j.Message, "Exit code", exitText(j),
				"Ranks", ranksText(j), "Attempt", attemptText(j), "Members lost", countText(j.Failures), "Failure signal", j.FailureSignal,
				"Command", commandText(j), "Directory", j.Directory, "Environment", labels(j.Env),
				"Output", outputText(j), "Created", a.age(j.CreatedAt)+" ago", "Took", took)
		})
	}
	return cmd
}

func (a *app) jobLogs() *cobra.Command {
	var follow bool
	var attempt int
	cmd := &cobra.Command{
		Use: "logs ID", Aliases: []string{"log"}, Short: "Show a job's output", Args: oneArg("job"), ValidArgsFunction: a.completeJobs,
		Long: "Show a job's output: that of its latest attempt, or of another. Each attempt's is kept.",
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the output until the job, or the named attempt, has ended")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "attempt, 1 for the first (default: the latest)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("attempt") && attempt < 1 {
			return usage("--attempt: %d is too small; the first is 1", attempt)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if attempt > 0 {
			job, err := c.Job(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if attempt > job.Attempt+1 {
				return usage("--attempt: job %s has had %s so far, no attempt %d", job.ID, plural(job.Attempt+1, "attempt"), attempt)
			}
			_, err = c.JobAttemptLog(cmd.Context(), args[0], attempt-1, 0, follow, a.Streams.Out)
			return err
		}
		if _, err = c.JobLog(cmd.Context(), args[0], 0, follow, a.Streams.Out); err != nil {
			return err
		}
		job, err := c.Job(cmd.Context(), args[0])
		if err == nil {
			a.warnDiscarded(job)
		}
		return err
	}
	return cmd
}

func (a *app) jobCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel ID", Short: "Cancel a job", Args: oneArg("job"), ValidArgsFunction: a.completeJobs,
		Long: "Cancel a job. The job has ended once 'job show' reports so. Cancelling an ended job changes nothing.",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		j, err := c.CancelJob(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if j.Phase.Ended() {
			fmt.Fprintf(a.Streams.Out, "job %s had already ended (%s)\n", j.ID, j.Phase)
		} else {
			fmt.Fprintf(a.Streams.Out, "job %s is being cancelled\n", j.ID)
		}
		return nil
	}
	return cmd
}

func outputText(j api.Job) string {
	text := fmt.Sprintf("%d bytes", j.LogBytes)
	if j.DiscardedBytes > 0 {
		text += fmt.Sprintf(", and %d discarded", j.DiscardedBytes)
	}
	return text
}

func exitText(j api.Job) string {
	if j.ExitCode == nil {
		return ""
	}
	return strconv.Itoa(*j.ExitCode)
}

// attemptText counts from 1, and says which attempt it is of a job that may have more than one.
func attemptText(j api.Job) string {
	if j.Attempt == 0 && !j.Requeue {
		return ""
	}
	return strconv.Itoa(j.Attempt + 1)
}

func ranksText(j api.Job) string {
	if j.Ranks == 0 {
		return ""
	}
	return strconv.Itoa(j.Ranks)
}

// commandText writes a command so that a shell would read the same words.
func commandText(j api.Job) string { return quoteWords(j.Command) }

// shorten cuts a text that is longer than so many characters.
func shorten(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-3]) + "..."
}
