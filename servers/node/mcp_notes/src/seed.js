/** The notes that a notebook begins with: n1 to n8. Tasks are written about them, so they change for a reason only. */

/** @type {import("./notebook.js").Draft[]} */
export const SEED = [
  {
    title: "Groceries",
    text: "Milk, rye bread, six eggs and a bag of lemons. Ask whether the cheese counter is open on Sunday.",
    tags: ["home", "shopping"],
  },
  {
    title: "Garden plan",
    text: "Plant the tomatoes along the south wall. The herbs go next to the kitchen door, the pumpkins at the far end.",
    tags: ["garden", "home"],
  },
  {
    title: "Trip to Lisbon",
    text: "Flight on 14 May at 09:40. The hotel is near the river and breakfast is included.",
    tags: ["travel"],
  },
  {
    title: "Team meeting",
    text: "Anna reports on the budget. Decide who writes the summary for the board by Friday.",
    tags: ["work"],
  },
  {
    title: "Lemon cake",
    text: "Four lemons, 250 g flour, 200 g sugar, 3 eggs. Bake at 180 degrees for 40 minutes.",
    tags: ["home", "recipes"],
  },
  {
    title: "Books to read",
    text: "The Leopard, Middlemarch, The Periodic Table. Anna lent me the second one.",
    tags: ["reading"],
  },
  {
    title: "Budget draft",
    text: "Travel 1200, equipment 850, training 400. The board wants the total before the summer.",
    tags: ["money", "work"],
  },
  {
    title: "Bicycle repair",
    text: "The rear brake squeaks and the chain is worn. The shop on Mill Street is closed on Monday.",
    tags: ["garage"],
  },
];
