package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
)

func (a *app) measureCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "measure", Short: "Measure what virtualization and distance cost", Args: noArgs}
	cmd.AddCommand(a.measureGPUCommand(), a.measureRemoteDataCommand(), a.measureSoftwareCommand())
	return cmd
}

func (a *app) measureRemoteDataCommand() *cobra.Command {
	opts := config.RemoteData{Streams: a.Streams}
	var rates []string
	cmd := &cobra.Command{
		Use:   "remote-data",
		Short: "Run the same analysis on data that are near, far, copied and cached",
		Long: `Make a file of events and serve it by XRootD over a link of this machine, whose conditions vary. Run one analysis (uproot) in five ways in turn: the file
is near, is copied first, is read from far away, by a cache that is empty, and by a cache that has read the same before. Write each run to
DIR/runs.jsonl, and DIR/report.json and DIR/report.html at the end.

With --cluster, the jobs run in members of a cluster and read its datasets in the ways that it asks for: as a copy (near), by stream (streamed, copied), cached
(cold, warm) and preloaded. All files must be the same one; a cached dataset lists it under one name for each cold run, and one more. The conditions are
those of cluster --far, by whose network members and caches reach the server of the datasets.

One of --delay, --loss, --duplicate, --rate, --jobs, --loaders and --members may have several values, which are the points of the curve. Round trips are
measured before a run counts, and while it runs. Without --delay the delays are 0, 25ms, 75ms and 150ms, or 0 where something else varies.

A study that was stopped goes on with the runs that are missing. Nothing is left when the command ends, however it ends, but its directory. It needs
root, XRootD and a Python with uproot:

  apt install xrootd-server xrootd-server-plugins xrootd-client python3-xrootd python3-venv
  python3 -m venv --system-site-packages analysis
  analysis/bin/pip install uproot fsspec-xrootd`,
		Example: `  nearmetal measure remote-data --python analysis/bin/python --out results
  nearmetal measure remote-data --python analysis/bin/python --out long --delay 0,10ms,100ms,300ms --rounds 12 --megabytes 200
  nearmetal measure remote-data --python analysis/bin/python --out lossy --delay 25ms --loss 0,0.1,1
  nearmetal measure remote-data --python analysis/bin/python --out crowded --rate 100Mbit --loaders 0,5
  nearmetal measure remote-data --cluster c1 --far origin --python analysis/bin/python --out c1 --jobs 2 --members 1,2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, text := range rates {
				rate, err := api.ParseRate(text)
				if err != nil {
					return usage("--rate: %v", err)
				}
				opts.Rates = append(opts.Rates, rate)
			}
			if !cmd.Flags().Changed("delay") && max(len(opts.Losses), len(opts.Duplicates), len(opts.Rates), len(opts.Jobs), len(opts.Loaders), len(opts.Members)) > 1 {
				opts.Delays = []time.Duration{0}
			}
			return a.remoteData(cmd, opts)
		},
	}
	cmd.Flags().StringVar(&opts.Out, "out", "remote-data", "directory of the results")
	cmd.Flags().StringVar(&opts.Python, "python", "python3", "a Python with uproot and XRootD")
	cmd.Flags().DurationSliceVar(&opts.Delays, "delay", []time.Duration{0, 25 * time.Millisecond, 75 * time.Millisecond, 150 * time.Millisecond}, "round trips to add")
	cmd.Flags().Float64SliceVar(&opts.Losses, "loss", nil, "packets lost in each direction, in percent")
	cmd.Flags().Float64SliceVar(&opts.Duplicates, "duplicate", nil, "packets duplicated in each direction, in percent")
	cmd.Flags().StringSliceVar(&rates, "rate", nil, "rates of the link in each direction, like 100Mbit; unlimited by default")
	cmd.Flags().IntSliceVar(&opts.Jobs, "jobs", nil, "jobs that read at the same time (default 1)")
	cmd.Flags().IntSliceVar(&opts.Loaders, "loaders", nil, "transfers by HTTP over the same link meanwhile (default 0)")
	cmd.Flags().IntVar(&opts.Rounds, "rounds", 6, "how often each way is measured")
	cmd.Flags().IntVar(&opts.Megabytes, "megabytes", 32, "size of the file, in MB")
	cmd.Flags().StringVar(&opts.Cluster, "cluster", "", "run the jobs in members of this cluster, which read its datasets")
	cmd.Flags().StringVar(&opts.Far, "far", "", "cluster whose network gets the conditions, by which the server of the datasets is reached (default: that of --cluster)")
	cmd.Flags().IntSliceVar(&opts.Members, "members", nil, "members of --cluster among which the jobs are divided (default 1)")
	cmd.Flags().StringVar(&opts.Load, "load-url", "", "URL that members of --cluster load for --loaders, each a member beside those with jobs")
	return cmd
}

// remoteData runs a study on this machine, or in a cluster.
func (a *app) remoteData(cmd *cobra.Command, opts config.RemoteData) error {
	if a.Commands.RemoteData == nil {
		return usage("this build of nearmetal has no %q command", "measure remote-data")
	}
	if opts.Cluster == "" {
		if opts.Far != "" || opts.Load != "" {
			return usage("--far and --load-url are about clusters: name one by --cluster")
		}
		return a.Commands.RemoteData(cmd.Context(), opts, nil)
	}
	if cmd.Flags().Changed("megabytes") {
		return usage("--megabytes conflicts with --cluster: its datasets have the file")
	}
	c, err := a.client(0)
	if err != nil {
		return err
	}
	return a.Commands.RemoteData(cmd.Context(), opts, c)
}

func (a *app) measureSoftwareCommand() *cobra.Command {
	opts := config.SoftwareCache{Streams: a.Streams}
	cmd := &cobra.Command{
		Use:   "software-cache --tree DIR -- COMMAND [ARG...]",
		Short: "Start a program whose files are far away, with caches of several sizes",
		Long: `Make an image of a directory and serve it over a link of this machine. Mount it at the near end: parts of it are fetched as they are read, verified,
and kept within a limit. What was read longest ago makes room. Start the program five times with each limit: with nothing there, again, after the
page cache was dropped, once more so, and after the software cache was dropped. Write what each start took and downloaded
to DIR/runs.jsonl, and DIR/report.json and DIR/report.html at the end.

{} in a word of the command is where the tree is mounted. A study that was stopped goes on with the runs that are missing. It needs root, FUSE and
erofs-utils.`,
		Example: `  nearmetal measure software-cache --tree analysis --size 200,300,500,5000 --delay 25ms --out software -- {}/bin/start`,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Command = args
			return call(cmd.Context(), "measure software-cache", a.Commands.SoftwareCache, opts)
		},
	}
	cmd.Flags().StringVar(&opts.Out, "out", "software-cache", "directory of the results")
	cmd.Flags().StringVar(&opts.Tree, "tree", "", "directory with the program's files")
	cmd.Flags().IntSliceVar(&opts.Megabytes, "size", []int{200, 300, 500, 5000}, "sizes of the cache, in MB")
	cmd.Flags().DurationVar(&opts.Delay, "delay", 25*time.Millisecond, "round trip to add")
	cmd.Flags().Var(bitRate{&opts.Rate}, "rate", "rate of the link in each direction, like 100Mbit; unlimited by default")
	cmd.Flags().IntVar(&opts.Rounds, "rounds", 6, "how often each size is measured")
	return cmd
}
