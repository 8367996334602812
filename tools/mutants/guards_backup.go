package main

// backupGuards: an archive of a volume is whole or refused, and neither direction leaves the volume.
var backupGuards = []Mutant{
	{
		Guard:   "an archive with the end of another is refused",
		File:    "internal/archive/walk.go",
		Find:    "trailer.Bytes != passed.bytes || trailer.SHA256 != got || trailer.Files != files {",
		Replace: "len(got) == 0 {",
		Test:    "./internal/archive TestACutOrChangedArchiveIsRefused",
	},
	{
		Guard:   "an archive has no IDs that members have not",
		File:    "internal/archive/unpack.go",
		Find:    "h.Uid > MaxID ||",
		Replace: "h.Uid > 1<<31 ||",
		Test:    "./internal/archive TestHostileArchivesAreRefused",
	},
	{
		Guard:   "an archive gives no rights on the host",
		File:    "internal/archive/attributes.go",
		Find:    "if !travels(name, layer) || name == opaque && value != opaqueYes {",
		Replace: "if name == opaque && value != opaqueYes {",
		Test:    "./internal/archive TestHostileArchivesAreRefused",
	},
	{
		Guard:   "files with holes don't take a node's time for ever",
		File:    "internal/archive/pack.go",
		Find:    "p.seeming > p.most {",
		Replace: "p.seeming < 0 {",
		Test:    "./internal/archive TestSeemingContentIsBounded",
	},
	{
		Guard:   "a volume is not purged while an archive of it is written",
		File:    "internal/volume/imagepool/archive.go",
		Find:    "if p.exporting[uid] {",
		Replace: "if p.exporting[uid] && uid == \"\" {",
		Test:    "./internal/volume/imagepool TestPoolContract",
	},
	{
		Guard:   "what a crash left of a copy is removed",
		File:    "internal/volume/imagepool/archive.go",
		Find:    "if err := p.cfg.Images.DropCopies(); err != nil {",
		Replace: "if err := error(nil); err != nil {",
		Test:    "./internal/volume/imagepool TestAProcessThatIsKilledAmidAnArchiveLeavesNothing",
	},
}
