package main

// shapeGuards: named shapes of a site.
var shapeGuards = []Mutant{
	{
		Guard:   "a cluster keeps what it was made with when its shape changes",
		File:    "internal/apiserver/shapes.go",
		Find:    "if g.Name == group && g.ShapeName == name {",
		Replace: "if false {",
		Test:    "./internal/apiserver TestAClusterKeepsWhatItsShapeWasWhenItWasMade",
	},
	{
		Guard:   "cores that are given go before those of a shape",
		File:    "internal/manifest/shapes.go",
		Find:    "if *cores == 0 && !src.Has(join(path, \"cores\")) {",
		Replace: "if true {",
		Test:    "./internal/apiserver TestAClusterKeepsWhatItsShapeWasWhenItWasMade",
	},
	{
		Guard:   "only administrators set shapes",
		File:    "internal/apiserver/shapes.go",
		Find:    "\"PUT /v1/shapes/{name}\", AccessAdmin,",
		Replace: "\"PUT /v1/shapes/{name}\", AccessChange,",
		Test:    "./internal/apiserver TestShapesAreListedAndSetByAdministrators",
	},
}
