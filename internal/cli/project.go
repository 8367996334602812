package cli

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) projectCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "project", Short: "Create and show projects, and set their quotas", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.projectList(), a.projectShow(), a.projectCreate(), a.projectSet(), a.projectDelete())
	return a.connects(cmd)
}

func (a *app) projectList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List projects and the resources they hold", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Projects(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			devices := slices.ContainsFunc(all, func(p api.ProjectStatus) bool { return countersText(p) != "" })
			columns := []string{"NAME", "SHARES", "CORES", "MEMORY", "MEMBERS", "CLUSTERS"}
			if devices {
				columns = append(columns, "DEVICES")
			}
			t := newTable(w, append(columns, "AGE", "DESCRIPTION")...)
			for _, p := range all {
				q := quotaTexts(p)
				row := append([]string{p.Name, strconv.Itoa(p.Shares)}, q[:]...)
				if devices {
					row = append(row, countersText(p))
				}
				t.row(append(row, a.age(p.CreatedAt), p.Description)...)
			}
			t.flush()
		})
	}
	return cmd
}

// usedOf is what is used of something, with its limit when there is one.
func usedOf(used, limit string, limited bool) string {
	if !limited {
		return used
	}
	return used + " of " + limit
}

// countersText are the counters of devices that are in use or have a limit.
func countersText(p api.ProjectStatus) string {
	counters := maps.Clone(p.Quota.Devices)
	if counters == nil {
		counters = p.Used.Devices
	} else {
		maps.Copy(counters, p.Used.Devices)
	}
	var texts []string
	for _, counter := range slices.Sorted(maps.Keys(counters)) {
		used, limit := p.Used.Devices[counter], p.Quota.Devices[counter]
		texts = append(texts, counter+" "+usedOf(strconv.FormatInt(used, 10), strconv.FormatInt(limit, 10), limit > 0))
	}
	return strings.Join(texts, ", ")
}

// quotaTexts are cores, memory, members and clusters in use, each with its limit when there is one.
func quotaTexts(p api.ProjectStatus) [4]string {
	of := usedOf
	u, q := p.Used, p.Quota
	return [4]string{
		of(strconv.Itoa(u.Cores), strconv.Itoa(q.Cores), q.Cores > 0), of(sizeText(int64(u.Memory)), sizeText(int64(q.Memory)), q.Memory > 0),
		of(strconv.Itoa(u.Members), strconv.Itoa(q.Members), q.Members > 0), of(strconv.Itoa(u.Clusters), strconv.Itoa(q.Clusters), q.Clusters > 0),
	}
}

func (a *app) printProject(w io.Writer, p api.ProjectStatus) {
	q, created := quotaTexts(p), ""
	if !p.CreatedAt.IsZero() { // the default project was never made
		created = a.age(p.CreatedAt) + " ago"
	}
	addresses := ""
	if p.Used.Addresses > 0 || p.Quota.Addresses > 0 {
		addresses = usedOf(strconv.Itoa(p.Used.Addresses), strconv.Itoa(p.Quota.Addresses), p.Quota.Addresses > 0)
	}
	storage := ""
	if p.Used.Storage > 0 || p.Quota.Storage > 0 {
		storage = usedOf(volumeBytes(p.Used.Storage), volumeBytes(p.Quota.Storage), p.Quota.Storage > 0)
	}
	energy := ""
	if limit := p.Quota.EnergyJoules; limit > 0 {
		energy = usedOf(kilowattHours(p.Used.EnergyJoules), kilowattHours(limit), true) + " in 30 days"
	}
	datasets := ""
	if p.Used.Datasets > 0 || p.Quota.Datasets > 0 {
		datasets = usedOf(volumeBytes(p.Used.Datasets), volumeBytes(p.Quota.Datasets), p.Quota.Datasets > 0)
	}
	fields(w, "Name", p.Name, "Description", p.Description, "Shares", strconv.Itoa(p.Shares), "Cores", q[0], "Memory", q[1], "Members", q[2],
		"Clusters", q[3], "Storage", storage, "Datasets", datasets, "Addresses", addresses, "Energy", energy, "Devices", countersText(p), "Created", created)
}

func (a *app) projectShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a project, its quota and its use of it", Args: oneArg("project"), ValidArgsFunction: a.completeProjects,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		p, err := c.Project(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, p, func(w io.Writer) { a.printProject(w, p) })
	}
	return cmd
}

// projectFlags are what can be set of a project.
type projectFlags struct {
	api.ProjectRequest
	memory, disk, storage, datasets, energy string
}

func (f *projectFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Description, "description", "", "description for users")
	flags.IntVar(&f.Shares, "shares", 1, "its weight in the fair share, at least 1")
	flags.IntVar(&f.Quota.Cores, "cores", 0, "cores its clusters may hold at once (0: no limit)")
	flags.StringVar(&f.memory, "memory", "0", "memory its clusters may hold at once, like 512GiB (0: no limit)")
	flags.StringVar(&f.disk, "disk", "0", "private disks its clusters may hold at once, like 2TiB (0: no limit)")
	flags.StringVar(&f.storage, "storage", "0", "bytes its volumes and their snapshots may hold at once, like 10TiB (0: no limit)")
	flags.StringVar(&f.datasets, "datasets", "0", "bytes that nodes may hold of its datasets in replicas and caches, like 5TiB (0: no limit)")
	flags.IntVar(&f.Quota.Members, "members", 0, "members its clusters may have at once (0: no limit)")
	flags.IntVar(&f.Quota.Clusters, "clusters", 0, "clusters it may have at once (0: no limit)")
	flags.IntVar(&f.Quota.Addresses, "addresses", 0, "floating addresses it may have at once (0: no limit)")
	flags.StringVar(&f.energy, "energy", "0", "energy its members may use in 30 days, like 50kWh or 180MJ; beyond it, what runs goes on and nothing more begins (0: no limit)")
	flags.StringToInt64Var(&f.Quota.Devices, "device", nil,
		"how much of a counter of devices its clusters may hold at once, like gpu/slices=14 (0: no limit), may be repeated")
}

// check finds what can't be meant.
func (f *projectFlags) check(flags *pflag.FlagSet) error {
	if f.memory != "0" {
		memory, err := api.ParseBytes(f.memory)
		if err != nil {
			return usage("--memory: %v", err)
		}
		f.Quota.Memory = memory
	}
	if f.disk != "0" {
		disk, err := api.ParseBytes(f.disk)
		if err != nil {
			return usage("--disk: %v", err)
		}
		f.Quota.Disk = disk
	}
	if f.storage != "0" {
		storage, err := api.ParseBytes(f.storage)
		if err != nil {
			return usage("--storage: %v", err)
		}
		f.Quota.Storage = storage
	}
	if f.energy != "0" {
		joules, err := parseEnergy(f.energy)
		if err != nil {
			return usage("--energy: %v", err)
		}
		f.Quota.EnergyJoules = joules
	}
	if f.datasets != "0" {
		datasets, err := api.ParseBytes(f.datasets)
		if err != nil {
			return usage("--datasets: %v", err)
		}
		f.Quota.Datasets = datasets
	}
	if f.Shares < 1 {
		return usage("--shares: %d is too small; give at least 1", f.Shares)
	}
	for _, counter := range slices.Sorted(maps.Keys(f.Quota.Devices)) {
		if problem := manifest.CounterProblem(counter); problem != "" {
			return usage("--device: %q %s=NUMBER", counter, strings.TrimSuffix(problem, `, such as "gpu/slices"`))
		}
		if n := f.Quota.Devices[counter]; n < 0 {
			return usage("--device: %s=%d is below zero; give a limit, or 0 for none", counter, n)
		}
	}
	for name, n := range map[string]int64{
		"cores": int64(f.Quota.Cores), "memory": int64(f.Quota.Memory), "disk": int64(f.Quota.Disk), "storage": int64(f.Quota.Storage), "datasets": int64(f.Quota.Datasets), "members": int64(f.Quota.Members), "clusters": int64(f.Quota.Clusters), "addresses": int64(f.Quota.Addresses),
	} {
		if n < 0 {
			return usage("--%s: %s is below zero; give a limit, or 0 for none", name, flags.Lookup(name).Value)
		}
	}
	return nil
}

// patch is a change of what was given, and of nothing else.
func (f *projectFlags) patch(flags *pflag.FlagSet) api.MergePatch {
	settings, quota := api.MergePatch{}, api.MergePatch{}
	inQuota := map[string]string{"energy": "energy_joules"} // where the flag has another name
	for name, field := range map[string]struct {
		of    api.MergePatch
		value any
	}{
		"description": {settings, f.Description}, "shares": {settings, f.Shares},
		"cores": {quota, f.Quota.Cores}, "memory": {quota, f.Quota.Memory}, "disk": {quota, f.Quota.Disk}, "storage": {quota, f.Quota.Storage}, "datasets": {quota, f.Quota.Datasets}, "members": {quota, f.Quota.Members}, "clusters": {quota, f.Quota.Clusters}, "addresses": {quota, f.Quota.Addresses},
		"energy": {quota, f.Quota.EnergyJoules},
	} {
		if flags.Changed(name) {
			field.of[cmp.Or(inQuota[name], name)] = field.value
		}
	}
	if flags.Changed("device") {
		quota["devices"] = f.Quota.Devices
	}
	if len(quota) > 0 {
		settings["quota"] = quota
	}
	return settings
}

func (a *app) projectCreate() *cobra.Command {
	var f projectFlags
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a project",
		Long:    "Create a project. Its quota bounds the resources that its clusters hold at once. Its shares weigh its past use in the queue.",
		Example: "  nearmetal project create fluids --cores 256 --memory 1TiB --shares 2",
	}
	f.add(cmd.Flags())
	out := outputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := firstError(oneArg("project")(cmd, args), f.check(cmd.Flags())); err != nil {
			return err
		}
		if problem := manifest.LabelProblem(args[0], manifest.MaxProjectName); problem != "" {
			return usage("NAME: %q %s", args[0], problem)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		f.Name = args[0]
		p, err := c.CreateProject(cmd.Context(), f.ProjectRequest)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, p, func(w io.Writer) { a.printProject(w, p) })
	}
	return cmd
}

func (a *app) projectSet() *cobra.Command {
	var f projectFlags
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Change quota, shares or description of a project",
		Long: `Change quota, shares or description of a project; what is not given stays. A quota below what the project's clusters hold now is
refused.`,
		Example:           "  nearmetal project set fluids --cores 512 --memory 0",
		ValidArgsFunction: a.completeProjects,
	}
	f.add(cmd.Flags())
	out := outputFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := firstError(oneArg("project")(cmd, args), f.check(cmd.Flags())); err != nil {
			return err
		}
		for _, name := range []string{"description", "shares", "cores", "memory", "disk", "storage", "datasets", "members", "clusters", "addresses", "energy", "device"} {
			if cmd.Flags().Changed(name) {
				return nil
			}
		}
		return usage("say what to change; see '%s --help'", cmd.CommandPath())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		p, err := c.PatchProject(cmd.Context(), args[0], f.patch(cmd.Flags()))
		if err != nil {
			return inFlags(err)
		}
		return out.print(a.Streams.Out, p, func(w io.Writer) { a.printProject(w, p) })
	}
	return cmd
}

func (a *app) projectDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: "Delete projects that have no clusters and no tokens",
		Args: someArgs("projects to delete"), ValidArgsFunction: a.completeProjects,
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		return "project " + name + " deleted", c.DeleteProject(ctx, name)
	})
}
