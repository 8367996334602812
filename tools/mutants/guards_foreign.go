package main

// foreignGuards: disks of other systems, which are hostile input, and the machines that boot from them.
var foreignGuards = []Mutant{
	{
		Guard:   "a disk image with a backing file is refused",
		File:    "internal/environment/diskimage/diskimage.go",
		Find:    "case h.BackingFileOffset != 0 || h.BackingFileSize != 0:",
		Replace: "case false:",
		Test:    "./internal/environment/diskimage TestAnImageThatLeadsElsewhereOrLiesAboutItsSizeIsRefused",
	},
	{
		Guard:   "a disk image with an external data file is refused",
		File:    "internal/environment/diskimage/diskimage.go",
		Find:    "case h.Incompatible&featureDataFile != 0:",
		Replace: "case false:",
		Test:    "./internal/environment/diskimage TestAnImageThatLeadsElsewhereOrLiesAboutItsSizeIsRefused",
	},
	{
		Guard:   "a disk image's tables must lie in its file",
		File:    "internal/environment/diskimage/diskimage.go",
		Find:    "part.offset > uint64(size) || part.bytes > uint64(size)-part.offset",
		Replace: "part.offset+part.bytes > uint64(size)",
		Test:    "./internal/environment/diskimage TestAnImageThatLeadsElsewhereOrLiesAboutItsSizeIsRefused",
	},
	{
		Guard:   "a partition table's size is bounded",
		File:    "internal/environment/diskimage/boot.go",
		Find:    "count > gptMaxEntries",
		Replace: "false",
		Test:    "./internal/environment/diskimage TestTheFirmwareFollowsFromWhatTheDiskHas",
	},
	{
		Guard:   "a disk without a boot loader is refused",
		File:    "internal/environment/diskimage/boot.go",
		Find:    "if !b.BIOS && !b.UEFI {",
		Replace: "if false {",
		Test:    "./internal/environment/diskimage TestTheFirmwareFollowsFromWhatTheDiskHas",
	},
	{
		Guard:   "a truncated disk image is refused",
		File:    "internal/environment/build/disk.go",
		Find:    `if err := w.qemuImg(ctx, w.Disk, "", 0, "check", "-q"`,
		Replace: `if err := w.qemuImg(ctx, w.Disk, "", 0, "info"`,
		Test:    "./internal/environment/build TestADiskImageThatCanNotBeUsedIsRefusedWithTheReason",
	},
	{
		Guard:   "a seed leaves a system its own accounts and its own sshd",
		File:    "internal/driver/vm/seed.go",
		Find:    "if !slices.Contains(given, f.Path) {",
		Replace: "if false && !slices.Contains(given, f.Path) {",
		Test:    "./internal/driver/vm TestTheSeedTellsCloudInitWhatTheMemberIsAndKeepsTheSystemsAccounts",
	},
	{
		Guard:   "users of one guest share one door",
		File:    "internal/driver/vm/door.go",
		Find:    "opened := d.open[id]\n",
		Replace: "opened := d.open[\"\"]\n",
		Test:    "./internal/driver/vm TestADoorReachesAGuestPastItsNetworkAndIsSharedByAllWhoUseIt",
	},
	{
		Guard:   "a probe speaks of the member that it was begun for",
		File:    "internal/agent/ready.go",
		Find:    "m == nil || m.instance != instance || !alive(m.state)",
		Replace: "m == nil || m.instance < instance || !alive(m.state)",
		Test:    "./internal/agent TestTheProbeOfAnEarlierInstanceSaysNothingOfTheMemberThatRuns",
	},
	{
		Guard:   "jobs are refused where a member has no agent",
		File:    "internal/apiserver/foreign.go",
		Find:    "if img := view.Image(a.EnvironmentDigest); img != nil && img.Disk != nil {",
		Replace: "if img := view.Image(a.EnvironmentDigest); false && img.Disk != nil {",
		Test:    "./internal/apiserver TestEveryDocumentedErrorOccurs",
	},
	{
		Guard:   "the disk of another system is refused on stacks that can't boot it",
		File:    "internal/apiserver/foreign.go",
		Find:    "if g.Stack != api.StackVM {",
		Replace: "if false {",
		Test:    "./internal/apiserver TestGroupsOfAnotherSystemsDiskAreRefusedWhatNeedsAnAgent",
	},
}
