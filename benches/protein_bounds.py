"""Upper bounds on the Protein models by `mplp_c`, compared with the paper's values of LS-LP, in Markdown.

A printed value above a proven bound cannot be that of a labelling.
"""

from __future__ import annotations

import mapmrf
from catalogue import data_folder, models, parser


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--time-limit", type=float, default=180.0)
    options.add_argument("--models", nargs="+", help="only these models, by name")
    args = options.parse_args()
    print("| model | paper's LS-LP | proven bound | | our value | s |")
    print("|---|---|---|---|---|---|")
    for model in models(data_folder(args.data), "protein"):
        if args.models and model.name not in args.models:
            continue
        graph = mapmrf.read(model.path)
        result = mapmrf.solve(graph, "mplp_c", time_limit=args.time_limit, max_iterations=10**9)
        assert result.bound is not None and model.paper is not None
        # Half a unit of the paper's last printed digit.
        verdict = "no labelling has it" if model.paper - 0.05 > result.bound else ""
        print(
            f"| {model.name} | {model.paper} | {result.bound:.2f} | {verdict} | {result.value:.2f} | "
            f"{result.runtime - result.compile_time:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
